import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.lucene.index.BinaryDocValues;
import org.apache.lucene.index.LeafReader;
import org.apache.lucene.index.NumericDocValues;
import org.apache.lucene.index.PostingsEnum;
import org.apache.lucene.index.SortedDocValues;
import org.apache.lucene.index.TermsEnum;
import org.apache.lucene.search.DocIdSetIterator;
import org.apache.lucene.util.BytesRef;

/** Answers questions from the index, one at a time. */
final class Seeker {
  private static final VarHandle FLOAT = MethodHandles.byteArrayViewVarHandle(float[].class, ByteOrder.BIG_ENDIAN);
  private static final double LN2 = Math.log(2);

  private final LeafReader leaf;
  private final Models models;
  private PostingsEnum postings;

  // Candidates that passed the filter, and a heap of their places.
  private int size;
  private double[] scores = new double[1024];
  private long[] times = new long[1024];
  private int[] docs = new int[1024];
  private int[] objects = new int[1024];
  private int[] authors = new int[1024];
  private int[] heap = new int[1024];

  Seeker(LeafReader leaf, Models models) {
    this.leaf = leaf;
    this.models = models;
  }

  void answer(DataInputStream in, DataOutputStream out) throws IOException {
    int model = in.readByte();
    int country = Models.COUNTRIES.indexOf(in.readUTF());
    double freshness = in.readDouble();
    int reads = 0;
    for (int n = in.readInt(); n > 0; n--) {
      reads |= 1 << Models.LANGUAGES.indexOf(in.readUTF());
    }
    BytesRef[] follows = new BytesRef[in.readInt()];
    for (int i = 0; i < follows.length; i++) {
      follows[i] = new BytesRef(in.readUTF());
    }
    Arrays.sort(follows); // the order of the index: doc values are read forwards
    collect(follows, model, country, models.byViewer[model] ? freshness * 3600 : 86400, reads);
    write(follows, out);
  }

  private void collect(BytesRef[] follows, int model, int country, double halfLife, int reads) throws IOException {
    TermsEnum terms = leaf.terms("author").iterator();
    NumericDocValues at = leaf.getNumericDocValues("at");
    NumericDocValues likes = leaf.getNumericDocValues("likes");
    NumericDocValues comments = leaf.getNumericDocValues("comments");
    NumericDocValues impressions = leaf.getNumericDocValues("impressions");
    NumericDocValues language = leaf.getNumericDocValues("language");
    NumericDocValues countries = leaf.getNumericDocValues("country");
    BinaryDocValues vectors = leaf.getBinaryDocValues("vector");
    SortedDocValues object = leaf.getSortedDocValues("object");
    double[] weights = models.vector[model];
    double[] own = models.own[model];
    size = 0;
    for (int f = 0; f < follows.length; f++) {
      if (!terms.seekExact(follows[f])) {
        continue;
      }
      postings = terms.postings(postings, PostingsEnum.NONE);
      for (int doc = postings.nextDoc(); doc != DocIdSetIterator.NO_MORE_DOCS; doc = postings.nextDoc()) {
        at.advanceExact(doc);
        long time = at.longValue();
        if (time < models.from) {
          break; // those that follow are older
        }
        likes.advanceExact(doc);
        if (likes.longValue() < 3) {
          continue;
        }
        impressions.advanceExact(doc);
        if (impressions.longValue() >= 20000) {
          continue;
        }
        language.advanceExact(doc);
        int spoken = (int) language.longValue();
        if ((reads >> spoken & 1) == 0) {
          continue;
        }
        comments.advanceExact(doc);
        countries.advanceExact(doc);
        vectors.advanceExact(doc);
        object.advanceExact(doc);
        BytesRef vector = vectors.binaryValue();
        double s = 0;
        for (int i = 0; i < Models.DIMS; i++) {
          s += weights[i] * (float) FLOAT.get(vector.bytes, vector.offset + 4 * i);
        }
        double liked = likes.longValue();
        // Of whole numbers log(1 + x) is log1p, and faster here.
        s += own[0] * Math.log(1 + liked) + own[1] * Math.log(1 + (double) comments.longValue())
            + own[2] * liked / Math.max(impressions.longValue(), 1)
            + own[3] * Math.exp(-LN2 * ((models.asOf - time) / 1000.0 / halfLife)) + models.languageBonus[spoken];
        if (countries.longValue() == country) {
          s += own[4];
        }
        add(s, time, doc, object.ordValue(), f);
      }
    }
  }

  private void add(double score, long time, int doc, int object, int author) {
    if (size == scores.length) {
      int more = 2 * size;
      scores = Arrays.copyOf(scores, more);
      times = Arrays.copyOf(times, more);
      docs = Arrays.copyOf(docs, more);
      objects = Arrays.copyOf(objects, more);
      authors = Arrays.copyOf(authors, more);
      heap = new int[more];
    }
    scores[size] = score;
    times[size] = time;
    docs[size] = doc;
    objects[size] = object;
    authors[size++] = author;
  }

  private record Item(int candidate, List<Integer> also) {}

  /** Writes the best of distinct objects, and what ranks among them of the same. */
  private void write(BytesRef[] follows, DataOutputStream out) throws IOException {
    for (int i = 0; i < size; i++) {
      heap[i] = i;
    }
    for (int i = size / 2 - 1; i >= 0; i--) {
      down(i, size);
    }
    List<Item> top = new ArrayList<>();
    Map<Integer, Item> seen = new HashMap<>();
    for (int left = size; left > 0 && top.size() < models.limit; ) {
      int c = heap[0];
      heap[0] = heap[--left];
      down(0, left);
      Item before = seen.get(objects[c]);
      if (before != null) {
        if (before.also.size() < 3) {
          before.also.add(c);
        }
        continue;
      }
      Item item = new Item(c, new ArrayList<>());
      seen.put(objects[c], item);
      top.add(item);
    }
    SortedDocValues names = leaf.getSortedDocValues("object");
    out.writeInt(top.size());
    for (Item item : top) {
      int c = item.candidate;
      out.writeUTF(id(docs[c]));
      out.writeUTF(follows[authors[c]].utf8ToString());
      out.writeUTF(names.lookupOrd(objects[c]).utf8ToString());
      NumericDocValues kind = leaf.getNumericDocValues("kind");
      kind.advanceExact(docs[c]);
      out.writeByte((int) kind.longValue());
      out.writeLong(times[c]);
      out.writeDouble(scores[c]);
      out.writeInt(item.also.size());
      for (int a : item.also) {
        out.writeUTF(id(docs[a]));
      }
    }
  }

  private String id(int doc) throws IOException {
    BinaryDocValues ids = leaf.getBinaryDocValues("id");
    ids.advanceExact(doc);
    return ids.binaryValue().utf8ToString();
  }

  private void down(int i, int n) throws IOException {
    while (true) {
      int child = 2 * i + 1;
      if (child >= n) {
        return;
      }
      if (child + 1 < n && better(heap[child + 1], heap[child])) {
        child++;
      }
      if (!better(heap[child], heap[i])) {
        return;
      }
      int x = heap[i];
      heap[i] = heap[child];
      heap[child] = x;
      i = child;
    }
  }

  private boolean better(int a, int b) throws IOException {
    if (scores[a] != scores[b]) {
      return scores[a] > scores[b];
    }
    if (times[a] != times[b]) {
      return times[a] > times[b];
    }
    return id(docs[a]).compareTo(id(docs[b])) < 0;
  }
}
