#include "go_asm.h"
#include "textflag.h"

// func sweep(moves []move, ranks []uint8, leaves *[Batch]uint8)
//
// Y8 and Y9 are where the rows are. There are Batch of them, 64.
TEXT ·sweep(SB), NOSPLIT, $0-56
	MOVQ  moves_base+0(FP), SI
	MOVQ  moves_len+8(FP), CX
	MOVQ  ranks_base+24(FP), DI
	MOVQ  leaves+48(FP), DX
	IMULQ $move__size, CX
	ADDQ  SI, CX
	VPXOR Y8, Y8, Y8
	VPXOR Y9, Y9, Y9
	JMP   more

next:
	MOVL         move_column(SI), AX
	VPBROADCASTD move_least(SI), Y0
	VPBROADCASTD move_from(SI), Y1
	VPBROADCASTD move_to(SI), Y2
	VMOVDQU      (DI)(AX*1), Y3
	VMOVDQU      32(DI)(AX*1), Y4
	VPMAXUB      Y0, Y3, Y5
	VPMAXUB      Y0, Y4, Y6
	VPCMPEQB     Y3, Y5, Y5         // at least least
	VPCMPEQB     Y4, Y6, Y6
	VPCMPEQB     Y1, Y8, Y3         // in the split
	VPCMPEQB     Y1, Y9, Y4
	VPAND        Y3, Y5, Y5
	VPAND        Y4, Y6, Y6
	VPBLENDVB    Y5, Y2, Y8, Y8
	VPBLENDVB    Y6, Y2, Y9, Y9
	ADDQ         $move__size, SI

more:
	CMPQ    SI, CX
	JNE     next
	VMOVDQU Y8, (DX)
	VMOVDQU Y9, 32(DX)
	VZEROUPPER
	RET
