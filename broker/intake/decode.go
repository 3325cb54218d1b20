package intake

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/broker/limits"
	"github.com/millrace/millrace/internal/memory"
	"github.com/millrace/millrace/internal/nodewire"
)

// ReadMessage parses a protobuf request into req, once [Message] has found it within
// the limits. It sets the loan to the most bytes that the message and parsing it take. The
// caller returns the loan, also after an error. The error is a refusal: also if the memory
// that the loan is of has too little left.
func ReadMessage(message []byte, req proto.Message, loan *memory.Loan) error {
	var path []protoreflect.Name
	for _, name := range entitiesOf(req) {
		path = append(path, protoreflect.Name(name))
	}
	cost, err := Message(message, req.ProtoReflect().Descriptor(), path...)
	if err == nil {
		err = loan.Hold(int64(len(message)) + cost)
	}
	if err == nil {
		err = unmarshalProto(message, req)
	}
	return err
}

// unmarshalProto is proto.Unmarshal, except that the entities of a GetFeedRequest are
// pieces of one string instead of hundreds of strings, and its viewer is read by
// nodewire.ReadViewer. It does not check that entities are UTF-8: TakeEntities of
// questions.Question does, and names the one that is not.
func unmarshalProto(message []byte, m proto.Message) (err error) {
	if req, ok := m.(*feedv1.GetFeedRequest); ok {
		err = unmarshalRequest(message, req)
	} else {
		err = proto.Unmarshal(message, m)
	}
	if err != nil {
		return limits.Invalid("", "send a "+string(m.ProtoReflect().Descriptor().FullName()), "%s", plain(err))
	}
	return nil
}

// The tags of GetFeedRequest.viewer and entities, fields 2 and 3, length-delimited.
const (
	viewerTag   = 2<<3 | uint64(protowire.BytesType)
	entitiesTag = 3<<3 | uint64(protowire.BytesType)
)

// unmarshalRequest reads the entities and the viewer by hand and leaves all other
// fields to proto.Unmarshal: see [unmarshalProto].
func unmarshalRequest(message []byte, req *feedv1.GetFeedRequest) error {
	n, viewers, others := 0, 0, 0 // how many entities and viewers, and the bytes of all other fields, the viewers included
	for at := 0; at < len(message); {
		tag, _, end, err := nextField(message, at)
		switch {
		case err != nil:
			return err
		case tag == entitiesTag:
			n++
		case tag == viewerTag:
			viewers++
			fallthrough
		default:
			others += end - at
		}
		at = end
	}
	all := string(message)
	entities, rest, viewer := make([]string, 0, n), make([]byte, 0, others), (*feedv1.Viewer)(nil)
	for at := 0; at < len(message); {
		tag, value, end, _ := nextField(message, at) // the loop above would have returned its error
		switch {
		case tag == entitiesTag:
			entities = append(entities, all[value:end])
		case tag == viewerTag && viewers == 1: // protobuf merges several viewers into one, which ReadViewer cannot
			viewer = &feedv1.Viewer{}
			if nodewire.ReadViewer(message[value:end], viewer) {
				break
			}
			viewer = nil
			fallthrough
		default:
			rest = append(rest, message[at:end]...)
		}
		at = end
	}
	if err := proto.Unmarshal(rest, req); err != nil {
		return err
	}
	if n > 0 {
		req.Entities = entities
	}
	if viewer != nil {
		req.Viewer = viewer
	}
	return nil
}

// nextField returns the tag of the field that begins at offset at, and the offset at which
// the field ends. value is the offset of its bytes if it is length-delimited, else 0.
func nextField(message []byte, at int) (tag uint64, value, end int, err error) {
	if at+1 < len(message) && uint64(message[at]) == entitiesTag && message[at+1] < 0x80 { // most fields are entities with a length of one byte
		if value, end = at+2, at+2+int(message[at+1]); end <= len(message) {
			return entitiesTag, value, end, nil
		}
	}
	field, kind, n := protowire.ConsumeTag(message[at:])
	if n < 0 {
		return 0, 0, 0, protowire.ParseError(n)
	}
	size := protowire.ConsumeFieldValue(field, kind, message[at+n:])
	if size < 0 {
		return 0, 0, 0, protowire.ParseError(size)
	}
	end = at + n + size
	if kind == protowire.BytesType {
		b, _ := protowire.ConsumeBytes(message[at+n:])
		value = end - len(b)
	}
	return protowire.EncodeTag(field, kind), value, end, nil
}
