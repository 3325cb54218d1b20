// Package shadow says how the rankings of shadow models differ from those that
// viewers were served, by exposures: what they share, how scores move, which
// types and authors would be shown more, what a candidate costs, and which
// features are missing. Brokers tell it of themselves in metrics; commands
// tell it of all brokers, from exposures. It decides nothing.
package shadow
