import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;

/** Sends all verbs with Java's own client: first as it comes, which offers HTTP/2 with each request, then as HTTP/1.1. */
public class AllVerbs {
    public static void main(String[] arguments) throws Exception {
        var row = URI.create(arguments[0] + "/v1/data/orders/from-java");
        var large = "{\"status\": \"new\", \"note\": \"" + "x".repeat(300_000) + "\"}";
        var token = 2000;
        for (var client : new HttpClient[] {
            HttpClient.newHttpClient(), HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build()
        }) {
            for (var verb : new String[] {"PUT", "PATCH", "GET", "HEAD", "POST", "DELETE"}) {
                var target = verb.equals("POST") ? row.resolve("/v1/claims") : row;
                var body = switch (verb) {
                    case "PUT", "PATCH" -> HttpRequest.BodyPublishers.ofString(large);
                    case "POST" -> HttpRequest.BodyPublishers.ofString("{\"resource\": \"orders/from-java\"}");
                    default -> HttpRequest.BodyPublishers.noBody();
                };
                var request = HttpRequest.newBuilder(target).method(verb, body);
                if (!verb.equals("GET") && !verb.equals("HEAD")) {
                    request.header("X-Fence-Token", String.valueOf(++token));
                }
                if (body.contentLength() > 0) {
                    request.header("Content-Type", "application/json");
                }
                var answer = client.send(request.build(), BodyHandlers.ofString());
                System.out.println(verb + " " + answer.statusCode() + " " + answer.version());
            }
        }
    }
}
