import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.lucene.document.BinaryDocValuesField;
import org.apache.lucene.document.Document;
import org.apache.lucene.document.Field;
import org.apache.lucene.document.NumericDocValuesField;
import org.apache.lucene.document.SortedDocValuesField;
import org.apache.lucene.document.StoredField;
import org.apache.lucene.document.StringField;
import org.apache.lucene.index.DirectoryReader;
import org.apache.lucene.index.IndexWriter;
import org.apache.lucene.index.IndexWriterConfig;
import org.apache.lucene.index.LeafReader;
import org.apache.lucene.search.Sort;
import org.apache.lucene.search.SortField;
import org.apache.lucene.store.Directory;
import org.apache.lucene.store.FSDirectory;
import org.apache.lucene.util.BytesRef;

/**
 * The team workload by Lucene: an index of one segment, sorted by author and then the newest first,
 * with doc values for all that the filter and the models read. Prints its address and answers frames.
 */
public final class Team {
  public static void main(String[] args) throws Exception {
    Directory directory = FSDirectory.open(Path.of(args[1]));
    fill(Path.of(args[0]), directory);
    Models models = new Models(Path.of(args[2]));
    LeafReader leaf = DirectoryReader.open(directory).leaves().get(0).reader();
    ServerSocket server = new ServerSocket(0, 16, InetAddress.getLoopbackAddress());
    System.out.println("127.0.0.1:" + server.getLocalPort());
    System.out.flush();
    Thread ender = new Thread(Team::untilEnd);
    ender.setDaemon(true);
    ender.start();
    while (true) {
      Socket socket = server.accept();
      new Thread(() -> serve(socket, new Seeker(leaf, models))).start();
    }
  }

  /** Ends the process with its input, by which whoever started it says that it is over. */
  private static void untilEnd() {
    try {
      while (System.in.read() >= 0) {}
    } catch (IOException e) {
      // over as well
    }
    Runtime.getRuntime().halt(0);
  }

  private static void serve(Socket socket, Seeker seeker) {
    try (socket) {
      socket.setTcpNoDelay(true);
      DataInputStream in = new DataInputStream(new BufferedInputStream(socket.getInputStream(), 1 << 16));
      DataOutputStream out = new DataOutputStream(new BufferedOutputStream(socket.getOutputStream(), 1 << 16));
      while (true) {
        byte[] asked = new byte[in.readInt()];
        in.readFully(asked);
        ByteArrayOutputStream answer = new ByteArrayOutputStream(4096);
        seeker.answer(new DataInputStream(new ByteArrayInputStream(asked)), new DataOutputStream(answer));
        out.writeInt(answer.size());
        answer.writeTo(out);
        out.flush();
      }
    } catch (EOFException e) {
      // the client is done
    } catch (IOException e) {
      e.printStackTrace();
    }
  }

  private static void fill(Path records, Directory directory) throws IOException {
    IndexWriterConfig config = new IndexWriterConfig();
    config.setRAMBufferSizeMB(256);
    config.setUseCompoundFile(false);
    config.setIndexSort(new Sort(new SortField("author", SortField.Type.STRING), new SortField("at", SortField.Type.LONG, true)));
    try (DataInputStream in = new DataInputStream(new BufferedInputStream(Files.newInputStream(records), 1 << 20));
        IndexWriter writer = new IndexWriter(directory, config)) {
      while (in.readByte() == 1) {
        writer.addDocument(document(in));
      }
      writer.forceMerge(1);
      writer.commit();
    }
  }

  private static Document document(DataInputStream in) throws IOException {
    Document d = new Document();
    d.add(new BinaryDocValuesField("id", new BytesRef(in.readUTF())));
    String author = in.readUTF();
    d.add(new StringField("author", author, Field.Store.NO));
    d.add(new SortedDocValuesField("author", new BytesRef(author)));
    d.add(new SortedDocValuesField("object", new BytesRef(in.readUTF())));
    d.add(new NumericDocValuesField("language", Models.LANGUAGES.indexOf(in.readUTF())));
    d.add(new NumericDocValuesField("country", Models.COUNTRIES.indexOf(in.readUTF())));
    d.add(new StoredField("text", in.readUTF()));
    d.add(new NumericDocValuesField("kind", in.readByte()));
    for (String name : new String[] {"at", "likes", "comments", "impressions"}) {
      d.add(new NumericDocValuesField(name, in.readLong()));
    }
    byte[] vector = new byte[4 * Models.DIMS];
    in.readFully(vector);
    d.add(new BinaryDocValuesField("vector", new BytesRef(vector)));
    return d;
  }
}
