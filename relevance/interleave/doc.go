// Package interleave compares rankings inside one answer: it drafts an answer
// from two or more rankings, a team each, and counts the clicks by the team that
// drafted what was clicked.
//
// It is team draft (Radlinski, Kurup and Joachims, "How Does Clickthrough Data
// Reflect Retrieval Quality?", CIKM 2008, algorithm 2), for several rankings as
// in Schuth, Sietsma, Whiteson, Lefortier and de Rijke, "Multileaved Comparisons
// for Fast Online Evaluation", CIKM 2014. Everything is a pure function.
package interleave
