// Package shadow tells how the rankings of shadow models differ from those that viewers
// were served. A shadow model ranks the candidates of an answer again, and nobody sees its
// ranking. The package reads exposures, the records of answers, and reports how many items
// both rankings share, how scores move, which types and authors would be shown more, what
// it costs to score a candidate, and which features are missing. A broker reports that of
// its own answers in metrics; commands report it of the answers of all brokers. The package
// decides nothing.
package shadow
