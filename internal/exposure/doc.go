// Package exposure is what brokers write of their answers: a record of what was shown, for
// each answer in which an experiment or a shadow model had a part ([Record], as Avro under
// schemas/exposure.avsc), and the log that writes records in the background, so that
// requests do not wait ([Log]).
package exposure
