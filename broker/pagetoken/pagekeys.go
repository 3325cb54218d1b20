package pagetoken

import (
	"encoding/binary"
	"errors"
	"sync"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/secrets"
)

// Secret is the name of the secret that brokers sign page tokens with, for
// [secrets.Watch].
const Secret = "pages"

// Keys are the keys that page tokens need. All of them derive from one secret, which the
// brokers of a cluster share.
type Keys struct {
	token   []byte             // signs tokens
	request []byte             // signs an [Identity]
	sets    [2]uint64          // hashes the sets in an [Identity]; see setSum
	Served  millrace.ServedKey // hashes the items in [Cursor.Served]
}

func newKeys(secret []byte) *Keys {
	k := &Keys{token: secret, request: mac(secret, []byte("request"))}
	sets := mac(secret, []byte("sets"))
	k.sets = [2]uint64{binary.LittleEndian.Uint64(sets), binary.LittleEndian.Uint64(sets[8:])}
	copy(k.Served[:], mac(secret, []byte("served")))
	return k
}

// Ring holds the keys of each generation of the secret. A new generation takes the place of
// the secret before it at a time that all brokers know. All pages of a feed use the keys
// of its first page.
type Ring struct {
	generations func() []secrets.Generation // the newest first, at least one
	mu          sync.Mutex
	made        map[string]*Keys // the keys made so far, by secret; guarded by mu
}

// NewRing returns a ring. generations returns the secret's generations as they are now: the
// newest first, and at least one.
func NewRing(generations func() []secrets.Generation) *Ring {
	return &Ring{generations: generations, made: map[string]*Keys{}}
}

// keys returns the keys of a generation, which it derives once and then keeps.
func (r *Ring) keys(g secrets.Generation) *Keys {
	r.mu.Lock()
	defer r.mu.Unlock()
	k, ok := r.made[string(g.Secret)]
	if !ok {
		k = newKeys(g.Secret)
		r.made[string(g.Secret)] = k
	}
	return k
}

// Signing returns the keys for a feed whose first page is asked for now: those of the
// newest generation whose time has begun, or of the oldest if none has.
func (r *Ring) Signing(now time.Time) *Keys {
	all := r.generations()
	for _, g := range all {
		if !g.From.After(now) {
			return r.keys(g)
		}
	}
	return r.keys(all[len(all)-1])
}

// Open checks and reads a token with the keys that it was signed with. Keys are good
// until [Life] after the next generation took their place. If that generation stands alone
// ([secrets.Generation]), they are good only until it took their place. The error says why
// a token is refused, as the rest of a sentence about the token.
func (r *Ring) Open(token string, now time.Time) (*Cursor, error) {
	b, sum, err := splitToken(token)
	if err != nil {
		return nil, err
	}
	all := r.generations()
	for i, g := range all {
		keys := r.keys(g)
		if signed(b, sum, keys.token) {
			if end := secrets.Until(all, i, Life); !end.IsZero() && now.After(end) {
				return nil, errors.New("it was made with a key whose time is over")
			}
			c, err := decodeBody(b)
			if err != nil {
				return nil, err
			}
			c.Keys = keys
			return c, nil
		}
	}
	return nil, errors.New("it was not made here, or was altered")
}
