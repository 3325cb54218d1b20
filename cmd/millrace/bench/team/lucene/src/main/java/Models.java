import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;

/** What a question means: the instant, the window, the limit, and the models. */
final class Models {
  static final int DIMS = 24;
  static final List<String> LANGUAGES = List.of("en", "es", "pt", "hi", "de", "fr", "ja");
  static final List<String> COUNTRIES = List.of("us", "in", "br", "gb", "de", "fr", "mx", "jp", "it", "ca", "ar", "ng", "id", "eg", "pl", "kr");

  final long asOf;
  final long from;
  final int limit;
  final double[] languageBonus = new double[LANGUAGES.size()];
  final double[][] vector;
  final double[][] own;
  final boolean[] byViewer;

  Models(Path path) throws IOException {
    try (DataInputStream in = new DataInputStream(new BufferedInputStream(Files.newInputStream(path)))) {
      asOf = in.readLong();
      from = asOf - in.readLong();
      limit = (int) in.readLong();
      int n = (int) in.readLong();
      for (int i = 0; i < languageBonus.length; i++) {
        languageBonus[i] = in.readDouble();
      }
      vector = new double[n][DIMS];
      own = new double[n][5];
      byViewer = new boolean[n];
      for (int m = 0; m < n; m++) {
        for (int i = 0; i < DIMS; i++) {
          vector[m][i] = in.readDouble();
        }
        for (int i = 0; i < own[m].length; i++) {
          own[m][i] = in.readDouble();
        }
        byViewer[m] = in.readBoolean();
      }
    }
  }
}
