package coordinator

// At returns the configuration with a function that is called at each named
// step.
func (c Config) At(at func(step string)) Config { c.at = at; return c }
