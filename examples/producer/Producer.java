// Queues writes of orders by Kafka alone: java -cp 'LIBS/*' Producer.java BROKERS TOPIC < orders.jsonl
//
// Each line is a JSON object with order_id and the columns to change. Prints the id of each write. LIBS has the jars of
// kafka-clients and Jackson, as the libs folder of an installed Kafka does.

import static java.nio.charset.StandardCharsets.UTF_8;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.security.SecureRandom;
import java.util.HexFormat;
import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.StringSerializer;

public class Producer {
    private static final PrintStream OUT = new PrintStream(System.out, true, UTF_8);
    private static final SecureRandom RANDOM = new SecureRandom();

    public static void main(String[] args) throws Exception {
        // The partition is left to the client's own default, murmur2 of the key: Fencepost chooses so, too.
        // enable.idempotence: messages keep their order when a broker's answer is lost; it needs acks=all.
        Map<String, Object> settings =
                Map.of("bootstrap.servers", args[0], "enable.idempotence", true, "acks", "all");
        StringSerializer text = new StringSerializer();
        ObjectMapper json = new ObjectMapper();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings, text, text);
                BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, UTF_8))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                ObjectNode order = (ObjectNode) json.readTree(line);
                String key = "orders/" + encoded(order.remove("order_id").textValue());
                // write-nonce: should the producer append the message twice after all, the second one has no effect.
                String nonce = nonce();
                ProducerRecord<String, String> message = new ProducerRecord<>(args[1], key, order.toString());
                message.headers().add("method", "PATCH".getBytes(UTF_8)).add("write-nonce", nonce.getBytes(UTF_8));
                producer.send(message, (place, error) -> kept(key, nonce, place, error));
            }
        }
    }

    private static void kept(String key, String nonce, RecordMetadata place, Exception error) {
        if (error != null) {
            System.err.println(key + " was not kept: " + error);
            Runtime.getRuntime().halt(1);
        }
        OUT.printf("%s kafka:%s.%d.%d.%s%n", key, place.topic(), place.partition(), place.offset(), nonce);
    }

    /** As Fencepost writes values in the names of resources: these four characters percent-encoded, % first. */
    private static String encoded(String value) {
        return value.replace("%", "%25").replace("/", "%2F").replace(",", "%2C").replace(";", "%3B");
    }

    private static String nonce() {
        byte[] bytes = new byte[8];
        RANDOM.nextBytes(bytes);
        return HexFormat.of().formatHex(bytes);
    }
}
