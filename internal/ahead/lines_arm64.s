#include "textflag.h"

// func Lines(p unsafe.Pointer, n int)
TEXT ·Lines(SB), NOSPLIT, $0-16
	MOVD p+0(FP), R0
	MOVD n+8(FP), R1
loop:
	PRFM (R0), PLDL2KEEP
	ADD  $64, R0
	SUBS $1, R1
	BGT  loop
	RET
