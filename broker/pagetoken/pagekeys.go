package pagetoken

import (
	"encoding/binary"
	"errors"
	"sync"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/secrets"
)

// Secret names what brokers sign page tokens with, for
// [secrets.Watch].
const Secret = "pages"

// Keys are what pages keep secret, all of one secret that the brokers of a
// cluster share.
type Keys struct {
	token   []byte // signs tokens
	request []byte // signs what a request asks,
	sets    [2]uint64
	Served  millrace.ServedKey
}

func newKeys(secret []byte) *Keys {
	k := &Keys{token: secret, request: mac(secret, []byte("request"))}
	sets := mac(secret, []byte("sets"))
	k.sets = [2]uint64{binary.LittleEndian.Uint64(sets), binary.LittleEndian.Uint64(sets[8:])}
	copy(k.Served[:], mac(secret, []byte("served")))
	return k
}

// Ring is the keys of pages by generation. The pages of a feed keep the key
// of the first.
type Ring struct {
	generations func() []secrets.Generation // the newest first
	mu          sync.Mutex
	made        map[string]*Keys // by secret
}

// NewRing returns the keys of generations, the newest first.
func NewRing(generations func() []secrets.Generation) *Ring {
	return &Ring{generations: generations, made: map[string]*Keys{}}
}

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

// Signing returns the keys of what begins now.
func (r *Ring) Signing(now time.Time) *Keys {
	all := r.generations()
	for _, g := range all {
		if !g.From.After(now) {
			return r.keys(g)
		}
	}
	return r.keys(all[len(all)-1])
}

// Open reads a token by whichever keys it was made with, if pages of theirs may
// still be asked for: until a day after others took their place, or not at all
// where those stand alone.
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
