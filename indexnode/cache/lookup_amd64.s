//go:build !race

#include "go_asm.h"
#include "textflag.h"

// func prefetch(buckets []*bucket)
TEXT ·prefetch(SB), NOSPLIT, $0-24
	MOVQ buckets+0(FP), AX
	MOVQ buckets_len+8(FP), CX
	LEAQ (AX)(CX*8), CX
	JMP  more

next:
	MOVQ       (AX), SI
	PREFETCHT0 (SI)
	ADDQ       $8, AX

more:
	CMPQ AX, CX
	JNE  next
	RET

// func locate(b *batch, names *[batchKeys]id, typ id, buckets *bucket, mask uint64)
//
// The numbers are those of join, home and bucketBytes.
TEXT ·locate(SB), NOSPLIT, $0-48
	MOVQ b+0(FP), BX
	MOVQ names+8(FP), DI
	MOVQ typ_tag+16(FP), R12
	MOVQ typ_check+24(FP), R13
	MOVQ buckets+32(FP), DX
	MOVQ mask+40(FP), R8
	MOVQ batch_n(BX), CX
	MOVQ $0x9e3779b97f4a7c15, R9
	MOVQ $0xc2b2ae3d27d4eb4f, R10
	XORQ AX, AX
	JMP  more

next:
	MOVQ       id_tag(DI), SI
	MOVQ       id_check(DI), R11
	XORQ       R12, SI
	XORQ       R13, R11
	IMULQ      R9, SI
	IMULQ      R10, R11
	ORQ        $1, SI
	ORQ        $const_touched, R11
	MOVQ       SI, batch_tags(BX)(AX*8)
	MOVQ       R11, batch_checks(BX)(AX*8)
	SHRQ       $32, SI
	ANDQ       R8, SI
	SHLQ       $6, SI
	ADDQ       DX, SI
	MOVQ       SI, batch_in(BX)(AX*8)
	PREFETCHT0 (SI)
	ADDQ       $id__size, DI
	INCQ       AX

more:
	CMPQ AX, CX
	JLT  next
	RET

// func matchAVX2(b *batch, values, odd *[batchKeys]uint64)
TEXT ·matchAVX2(SB), NOSPLIT, $0-24
	MOVQ b+0(FP), BX
	MOVQ values+8(FP), DI
	MOVQ odd+16(FP), DX
	MOVQ batch_n(BX), CX
	MOVQ $(const_checkBits|const_touched), R8
	XORQ AX, AX
	JMP  more

next:
	MOVQ         batch_in(BX)(AX*8), SI
	VPBROADCASTQ batch_tags(BX)(AX*8), Y0
	VPCMPEQQ     (SI), Y0, Y1             // tag, value, tag, value
	VPCMPEQQ     32(SI), Y0, Y2
	VMOVMSKPD    Y1, R9
	VMOVMSKPD    Y2, R10
	SHLQ         $4, R10
	ORQ          R10, R9
	ANDQ         $0x55, R9                // tags only
	CMPQ         R9, $1
	SBBQ         R11, R11                 // all ones if there is none
	ORQ          $0x40, R9                // and then the last slot does
	BSFQ         R9, R10
	MOVQ         8(SI)(R10*8), R12
	MOVQ         R12, (DI)(AX*8)
	XORQ         batch_checks(BX)(AX*8), R12
	ANDQ         R8, R12
	ORQ          R11, R12
	MOVQ         R12, (DX)(AX*8)
	INCQ         AX

more:
	CMPQ AX, CX
	JLT  next
	VZEROUPPER
	RET
