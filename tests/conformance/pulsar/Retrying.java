import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/** What only the Java client does, for test_java.py: prints a line for each thing that happened. */
public class Retrying {
    static final int ROUNDS = 10;

    public static void main(String[] arguments) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[1]).build()) {
            if (arguments[0].equals("limit")) {
                limit(client, arguments[2]);
            } else {
                reconsume(client, arguments[2]);
            }
        }
        System.exit(0);
    }

    /** A message over the longest delay between two that are not. */
    static void limit(PulsarClient client, String topic) throws Exception {
        try (Producer<String> producer = client.newProducer(Schema.STRING).topic(topic).create()) {
            producer.newMessage().value("before").deliverAfter(4, TimeUnit.SECONDS).send();
            try {
                producer.newMessage().value("over").deliverAfter(6, TimeUnit.SECONDS).send();
                System.out.println("taken");
            } catch (PulsarClientException.NotAllowedException refused) {
                System.out.println("refused: " + refused.getMessage());
            }
            producer.newMessage().value("after").deliverAfter(4, TimeUnit.SECONDS).send();
            System.out.println("connected: " + producer.isConnected());
        }
    }

    /** A message that is put off again and again, and then given up. */
    static void reconsume(PulsarClient client, String topic) throws Exception {
        String dead = topic + "-dead";
        Consumer<String> consumer = client.newConsumer(Schema.STRING).topic(topic).subscriptionName("sub")
                .subscriptionType(SubscriptionType.Shared).enableRetry(true)
                .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(ROUNDS)
                        .retryLetterTopic(topic + "-retry").deadLetterTopic(dead).build())
                .subscribe();
        Consumer<String> undertaker = client.newConsumer(Schema.STRING).topic(dead).subscriptionName("sub")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
        try (Producer<String> producer = client.newProducer(Schema.STRING).topic(topic).create()) {
            producer.send("stubborn");
        }
        int received = 0;
        while (true) {
            Message<String> message = consumer.receive(received <= ROUNDS ? 60 : 1, TimeUnit.SECONDS);
            if (message == null) {
                break;
            }
            received++;
            consumer.reconsumeLater(message, 200, TimeUnit.MILLISECONDS);
        }
        Message<String> buried = undertaker.receive(60, TimeUnit.SECONDS);
        System.out.println("received: " + received);
        System.out.println("buried: " + (buried == null ? "nothing" : buried.getValue()));
    }
}
