// Package exposure is what brokers tell of their answers: a record for each
// answer that an experiment or a sampled shadow had a part in (Record, as Avro
// under schemas/exposure.avsc), and the log that takes records off the path of
// requests (Log).
package exposure
