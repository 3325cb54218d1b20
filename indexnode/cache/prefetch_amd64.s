#include "textflag.h"

// func prefetch(keys []id, buckets *bucket, mask uint64)
TEXT ·prefetch(SB), NOSPLIT, $0-40
	MOVQ keys+0(FP), AX
	MOVQ keys_len+8(FP), CX
	MOVQ buckets+24(FP), BX
	MOVQ mask+32(FP), DX

next:
	SUBQ $1, CX
	JLT  done
	MOVQ (AX), SI
	ANDQ DX, SI
	SHLQ $6, SI
	PREFETCHT0 (BX)(SI*1)
	ADDQ $16, AX
	JMP  next

done:
	RET
