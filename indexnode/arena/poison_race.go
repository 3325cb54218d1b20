//go:build race

package arena

// poison fills freed blocks, so that who reads them notices.
const poison = true
