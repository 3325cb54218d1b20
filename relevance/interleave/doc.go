// Package interleave compares rankings inside one answer. It drafts an answer from two or
// more rankings: each is a team, and the teams choose items in turn. Then it counts the
// clicks by the team that drafted the clicked item.
//
// It is team draft (Radlinski, Kurup and Joachims, "How Does Clickthrough Data
// Reflect Retrieval Quality?", CIKM 2008, algorithm 2), for several rankings as
// in Schuth, Sietsma, Whiteson, Lefortier and de Rijke, "Multileaved Comparisons
// for Fast Online Evaluation", CIKM 2014. The draft is a pure function.
package interleave
