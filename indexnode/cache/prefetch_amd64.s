#include "textflag.h"

// func prefetch(buckets []*bucket)
TEXT ·prefetch(SB), NOSPLIT, $0-24
	MOVQ buckets+0(FP), AX
	MOVQ buckets_len+8(FP), CX
	LEAQ (AX)(CX*8), CX
	CMPQ AX, CX
	JEQ  done

next:
	MOVQ (AX), SI
	PREFETCHT0 (SI)
	ADDQ $8, AX
	CMPQ AX, CX
	JNE  next

done:
	RET
