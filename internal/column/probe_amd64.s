#include "go_asm.h"
#include "textflag.h"

// WIDE_SUM makes a float64 of the eight int32s of Y0, which come to an int32, and
// writes it.
#define WIDE_SUM \
	VEXTRACTI128 $1, Y0, X1      \
	VPADDD       X1, X0, X0      \
	VPSHUFD      $0x4e, X0, X1   \
	VPADDD       X1, X0, X0      \
	VPSHUFD      $0xb1, X0, X1   \
	VPADDD       X1, X0, X0      \
	VCVTDQ2PD    X0, X0          \
	VMOVSD       X0, (DI)

// func wholeProducts(dst *float64, lists *List, rows int, whole *int16, n int) int
//
// The two int16s that a VPMADDWD adds are of at most 2^22 each.
TEXT ·wholeProducts(SB), NOSPLIT, $0-48
	MOVQ dst+0(FP), DI
	MOVQ lists+8(FP), SI
	MOVQ rows+16(FP), R8
	MOVQ whole+24(FP), R9
	MOVQ n+32(FP), R10
	MOVQ R10, R11
	ANDQ $-16, R11         // items of whole blocks
	MOVQ $1, R12
	SHLQ $32, R12
	ORQ  R10, R12          // what a list of n items of width 1 has behind its address
	LEAQ -8(R8), R13       // lists of which one comes eight later
	XORQ AX, AX

list:
	CMPQ AX, R8
	JEQ  done
	CMPQ List_n(SI), R12
	JNE  done
	CMPQ AX, R13
	JGE  near
	MOVQ (List_at+8*List__size)(SI), BX
	PREFETCHT0 (BX)
	PREFETCHT0 -1(BX)(R10*1)

near:
	MOVQ List_at(SI), BX
	VPXOR Y0, Y0, Y0
	XORQ CX, CX

next:
	VPMOVSXBW (BX)(CX*1), Y1
	VPMADDWD  (R9)(CX*2), Y1, Y1
	VPADDD    Y1, Y0, Y0
	ADDQ      $16, CX
	CMPQ      CX, R11
	JNE       next
	CMPQ      CX, R10
	JEQ       sum
	VPMOVSXBW -16(BX)(R10*1), Y1
	VPMADDWD  (R9)(R10*2), Y1, Y1
	VPADDD    Y1, Y0, Y0

sum:
	WIDE_SUM
	ADDQ $8, DI
	ADDQ $List__size, SI
	INCQ AX
	JMP  list

done:
	MOVQ AX, ret+40(FP)
	VZEROUPPER
	RET

// func wholeSquares(dst *float64, lists *List, rows int, mask *int16, n int) int
TEXT ·wholeSquares(SB), NOSPLIT, $0-48
	MOVQ dst+0(FP), DI
	MOVQ lists+8(FP), SI
	MOVQ rows+16(FP), R8
	MOVQ mask+24(FP), R9
	MOVQ n+32(FP), R10
	VMOVDQU (R9), Y2
	MOVQ R10, R11
	ANDQ $-16, R11
	MOVQ $1, R12
	SHLQ $32, R12
	ORQ  R10, R12
	XORQ AX, AX

list:
	CMPQ AX, R8
	JEQ  done
	CMPQ List_n(SI), R12
	JNE  done
	MOVQ List_at(SI), BX
	VPXOR Y0, Y0, Y0
	XORQ CX, CX

next:
	VPMOVSXBW (BX)(CX*1), Y1
	VPMADDWD  Y1, Y1, Y1
	VPADDD    Y1, Y0, Y0
	ADDQ      $16, CX
	CMPQ      CX, R11
	JNE       next
	CMPQ      CX, R10
	JEQ       sum
	VPMOVSXBW -16(BX)(R10*1), Y1
	VPAND     Y2, Y1, Y1
	VPMADDWD  Y1, Y1, Y1
	VPADDD    Y1, Y0, Y0

sum:
	WIDE_SUM
	ADDQ $8, DI
	ADDQ $List__size, SI
	INCQ AX
	JMP  list

done:
	MOVQ AX, ret+40(FP)
	VZEROUPPER
	RET

// What follows sums eight lists from the first item on: Y9 has the sums of the first
// four and Y10 of the others, a lane a list. Four items of each list are multiplied at
// once, and the products of four lists exchanged, so that a register has the products of
// one item.

// EIGHT loads where the lists at SI stand, and begins.
#define EIGHT \
	MOVQ   (List_at+0*List__size)(SI), R8        \
	MOVQ   (List_at+1*List__size)(SI), R9        \
	MOVQ   (List_at+2*List__size)(SI), R10       \
	MOVQ   (List_at+3*List__size)(SI), R11       \
	MOVQ   (List_at+4*List__size)(SI), R12       \
	MOVQ   (List_at+5*List__size)(SI), R13       \
	MOVQ   (List_at+6*List__size)(SI), AX        \
	MOVQ   (List_at+7*List__size)(SI), BX        \
	VXORPD Y9, Y9, Y9                            \
	VXORPD Y10, Y10, Y10                         \
	XORQ   SI, SI

// FOUR adds the products in Y0 to Y3, of four lists, to their sums, item by item. Y4 has
// items 0 and 2 of the first two lists by turns, Y5 items 1 and 3, Y6 and Y7 those of the
// other two.
#define FOUR(sum) \
	VUNPCKLPD  Y1, Y0, Y4        \
	VUNPCKHPD  Y1, Y0, Y5        \
	VUNPCKLPD  Y3, Y2, Y6        \
	VUNPCKHPD  Y3, Y2, Y7        \
	VPERM2F128 $0x20, Y6, Y4, Y0 \
	VPERM2F128 $0x20, Y7, Y5, Y1 \
	VPERM2F128 $0x31, Y6, Y4, Y2 \
	VPERM2F128 $0x31, Y7, Y5, Y3 \
	VADDPD     Y0, sum, sum      \
	VADDPD     Y1, sum, sum      \
	VADDPD     Y2, sum, sum      \
	VADDPD     Y3, sum, sum

#define TIMES(y) VMULPD Y8, y, y
#define TWICE(y) VMULPD y, y, y
#define APART(y) \
	VSUBPD Y8, y, y \
	VMULPD y, y, y

#define DOUBLES(at, x, y) VMOVUPD (at)(SI*8), y
#define FLOATS(at, x, y) VCVTPS2PD (at)(SI*4), y
#define INT8S(at, x, y) \
	VPMOVSXBD (at)(SI*1), x \
	VCVTDQ2PD x, y

// BODY adds what is of four items.
#define BODY(READ, OF) \
	READ(R8, X0, Y0)    \
	READ(R9, X1, Y1)    \
	READ(R10, X2, Y2)   \
	READ(R11, X3, Y3)   \
	OF(Y0)              \
	OF(Y1)              \
	OF(Y2)              \
	OF(Y3)              \
	FOUR(Y9)            \
	READ(R12, X0, Y0)   \
	READ(R13, X1, Y1)   \
	READ(AX, X2, Y2)    \
	READ(BX, X3, Y3)    \
	OF(Y0)              \
	OF(Y1)              \
	OF(Y2)              \
	OF(Y3)              \
	FOUR(Y10)           \
	ADDQ $4, SI         \
	CMPQ SI, CX

#define DONE \
	VMOVUPD Y9, (DI)    \
	VMOVUPD Y10, 32(DI) \
	VZEROUPPER          \
	RET

// func productsDouble(sums *[groupLists]float64, lists *[groupLists]List, items *float64, n int)
TEXT ·productsDouble(SB), NOSPLIT, $0-32
	MOVQ sums+0(FP), DI
	MOVQ lists+8(FP), SI
	MOVQ items+16(FP), DX
	MOVQ n+24(FP), CX
	EIGHT

next:
	VMOVUPD (DX)(SI*8), Y8
	BODY(DOUBLES, TIMES)
	JNE next
	DONE

// func productsFloat(sums *[groupLists]float64, lists *[groupLists]List, items *float64, n int)
TEXT ·productsFloat(SB), NOSPLIT, $0-32
	MOVQ sums+0(FP), DI
	MOVQ lists+8(FP), SI
	MOVQ items+16(FP), DX
	MOVQ n+24(FP), CX
	EIGHT

next:
	VMOVUPD (DX)(SI*8), Y8
	BODY(FLOATS, TIMES)
	JNE next
	DONE

// func productsInt8(sums *[groupLists]float64, lists *[groupLists]List, items *float64, n int)
TEXT ·productsInt8(SB), NOSPLIT, $0-32
	MOVQ sums+0(FP), DI
	MOVQ lists+8(FP), SI
	MOVQ items+16(FP), DX
	MOVQ n+24(FP), CX
	EIGHT

next:
	VMOVUPD (DX)(SI*8), Y8
	BODY(INT8S, TIMES)
	JNE next
	DONE

// func differencesDouble(sums *[groupLists]float64, lists *[groupLists]List, items *float64, n int)
TEXT ·differencesDouble(SB), NOSPLIT, $0-32
	MOVQ sums+0(FP), DI
	MOVQ lists+8(FP), SI
	MOVQ items+16(FP), DX
	MOVQ n+24(FP), CX
	EIGHT

next:
	VMOVUPD (DX)(SI*8), Y8
	BODY(DOUBLES, APART)
	JNE next
	DONE

// func differencesFloat(sums *[groupLists]float64, lists *[groupLists]List, items *float64, n int)
TEXT ·differencesFloat(SB), NOSPLIT, $0-32
	MOVQ sums+0(FP), DI
	MOVQ lists+8(FP), SI
	MOVQ items+16(FP), DX
	MOVQ n+24(FP), CX
	EIGHT

next:
	VMOVUPD (DX)(SI*8), Y8
	BODY(FLOATS, APART)
	JNE next
	DONE

// func differencesInt8(sums *[groupLists]float64, lists *[groupLists]List, items *float64, n int)
TEXT ·differencesInt8(SB), NOSPLIT, $0-32
	MOVQ sums+0(FP), DI
	MOVQ lists+8(FP), SI
	MOVQ items+16(FP), DX
	MOVQ n+24(FP), CX
	EIGHT

next:
	VMOVUPD (DX)(SI*8), Y8
	BODY(INT8S, APART)
	JNE next
	DONE

// func squaresDouble(sums *[groupLists]float64, lists *[groupLists]List, n int)
TEXT ·squaresDouble(SB), NOSPLIT, $0-24
	MOVQ sums+0(FP), DI
	MOVQ lists+8(FP), SI
	MOVQ n+16(FP), CX
	EIGHT

next:
	BODY(DOUBLES, TWICE)
	JNE next
	DONE

// func squaresFloat(sums *[groupLists]float64, lists *[groupLists]List, n int)
TEXT ·squaresFloat(SB), NOSPLIT, $0-24
	MOVQ sums+0(FP), DI
	MOVQ lists+8(FP), SI
	MOVQ n+16(FP), CX
	EIGHT

next:
	BODY(FLOATS, TWICE)
	JNE next
	DONE
