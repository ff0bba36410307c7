import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionType;

/** Sends delayed messages and receives them, for test_java.py: a line for each that was answered, and for each that came. */
public class Takeover {
    static synchronized void tell(String format, Object... values) {
        System.out.println(String.format(format, values));
        System.out.flush();
    }

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        int count = Integer.parseInt(arguments[2]);
        int everyMs = Integer.parseInt(arguments[3]);
        int delayMs = Integer.parseInt(arguments[4]);
        CountDownLatch open = new CountDownLatch(count);
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build()) {
            Consumer<String> consumer = client.newConsumer(Schema.STRING).topic(topic).subscriptionName("shop")
                    .subscriptionType(SubscriptionType.Shared).messageListener((from, message) -> {
                        tell("came %s %d %s", message.getValue(), System.currentTimeMillis(), message.getMessageId());
                        from.acknowledgeAsync(message).thenRun(open::countDown);
                    }).subscribe();
            Producer<String> producer = client.newProducer(Schema.STRING).topic(topic).producerName("java")
                    .sendTimeout(0, TimeUnit.SECONDS).enableBatching(false).create();
            for (int n = 0; n < count; n++) {
                String name = "j" + n;
                long due = System.currentTimeMillis() + delayMs;
                tell("sent %s %d", name, due);
                producer.newMessage().value(name).deliverAt(due).sendAsync()
                        .thenRun(() -> tell("answered %s %d", name, System.currentTimeMillis()));
                Thread.sleep(everyMs);
            }
            tell(open.await(90, TimeUnit.SECONDS) ? "end" : "not all came");
            // What comes twice comes now.
            Thread.sleep(1000);
        }
        System.exit(0);
    }
}
