import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * Cases of the Java client for retry, dead letter, delay and ack timeout, with the client's own default names and settings.
 * Arguments: the service URL, the URL of the administration, and a regular expression that limits the cases. Prints
 * "PASS name" or "FAIL name: reason" for each.
 */
public class PulsarCases {
    static final int WITHIN_S = 60;

    interface Case {
        void run(PulsarClient client) throws Exception;
    }

    static String admin;

    public static void main(String[] arguments) throws Exception {
        admin = arguments[1];
        Map<String, Case> cases = new LinkedHashMap<>();
        cases.put("retry topics of two topics are apart", PulsarCases::retryTopicsApart);
        cases.put("dead-letter topics of two topics are apart", PulsarCases::deadLetterTopicsApart);
        cases.put("retries come to an end in the dead-letter topic", PulsarCases::retriesEnd);
        cases.put("a retry is not early", PulsarCases::retryNotEarly);
        cases.put("deliverAfter on a shared subscription", client -> delayed(client, SubscriptionType.Shared, false));
        cases.put("deliverAt on a key-shared subscription", client -> delayed(client, SubscriptionType.Key_Shared, true));
        cases.put("delayed and immediate messages of one producer", PulsarCases::mixed);
        cases.put("ack timeout on two topics", PulsarCases::ackTimeoutOnTwoTopics);
        cases.put("ack timeout on two partitions", PulsarCases::ackTimeoutOnTwoPartitions);
        cases.put("ack timeout counts redeliveries", PulsarCases::ackTimeoutCounts);
        cases.put("ack timeout leads to the dead-letter topic", PulsarCases::ackTimeoutDeadLetter);
        cases.put("negative acknowledgements come again", PulsarCases::negativeAcknowledgement);
        ExecutorService pool = Executors.newFixedThreadPool(3);
        cases.forEach((name, one) -> {
            if (name.matches("(?s).*(" + arguments[2] + ").*")) {
                pool.execute(() -> tell(name, one, arguments[0]));
            }
        });
        pool.shutdown();
        pool.awaitTermination(600, TimeUnit.SECONDS);
        System.exit(0);
    }

    static void tell(String name, Case one, String url) {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(url).build()) {
            one.run(client);
            System.out.println("PASS " + name);
        } catch (Throwable failure) {
            System.out.println("FAIL " + name + ": " + failure);
        }
    }

    // What cases have in common

    static String topic() {
        return "persistent://public/default/java-" + UUID.randomUUID();
    }

    static void check(boolean good, String otherwise) {
        if (!good) {
            throw new AssertionError(otherwise);
        }
    }

    static ConsumerBuilder<String> shared(PulsarClient client, String... topics) {
        return client.newConsumer(Schema.STRING).topic(topics).subscriptionName("sub")
                .subscriptionType(SubscriptionType.Shared)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
    }

    static void send(PulsarClient client, String topic, String prefix, int count) throws Exception {
        try (Producer<String> producer = client.newProducer(Schema.STRING).topic(topic).create()) {
            for (int number = 0; number < count; number++) {
                producer.send(prefix + number);
            }
        }
    }

    static Message<String> next(Consumer<String> consumer) throws Exception {
        Message<String> message = consumer.receive(WITHIN_S, TimeUnit.SECONDS);
        check(message != null, "nothing came within " + WITHIN_S + " s");
        return message;
    }

    static void nothing(Consumer<String> consumer) throws Exception {
        Message<String> message = consumer.receive(1, TimeUnit.SECONDS);
        check(message == null, "there came " + (message == null ? "" : message.getValue()));
    }

    /** So many different messages, all with a prefix; each is acknowledged. */
    static void gather(Consumer<String> consumer, String prefix, int count) throws Exception {
        Set<String> found = new HashSet<>();
        while (found.size() < count) {
            Message<String> message = next(consumer);
            check(message.getValue().startsWith(prefix), "a message of another topic came: " + message.getValue());
            found.add(message.getValue());
            consumer.acknowledge(message);
        }
    }

    static void partitions(String topic, int count) throws Exception {
        String path = topic.replace("persistent://", "/admin/v2/persistent/") + "/partitions";
        HttpRequest request = HttpRequest.newBuilder(URI.create(admin + path))
                .header("Content-Type", "application/json")
                .PUT(HttpRequest.BodyPublishers.ofString(String.valueOf(count))).build();
        HttpResponse<String> answer = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build()
                .send(request, HttpResponse.BodyHandlers.ofString());
        check(answer.statusCode() == 204, "partitions: " + answer.statusCode() + " " + answer.body());
    }

    // Retry and dead letter, with the names that the client gives the topics

    static void retryTopicsApart(PulsarClient client) throws Exception {
        List<Consumer<String>> consumers = new ArrayList<>();
        String[] prefixes = {"order-", "invoice-"};
        for (String prefix : prefixes) {
            String topic = topic();
            consumers.add(shared(client, topic).enableRetry(true)
                    .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(5).build()).subscribe());
            send(client, topic, prefix, 10);
        }
        for (int at = 0; at < 2; at++) {
            for (int number = 0; number < 10; number++) {
                consumers.get(at).reconsumeLater(next(consumers.get(at)), 100, TimeUnit.MILLISECONDS);
            }
        }
        for (int at = 0; at < 2; at++) {
            gather(consumers.get(at), prefixes[at], 10);
        }
        for (Consumer<String> consumer : consumers) {
            nothing(consumer);
        }
    }

    static void deadLetterTopicsApart(PulsarClient client) throws Exception {
        for (String prefix : new String[] {"order-", "invoice-"}) {
            String topic = topic();
            Consumer<String> dead = shared(client, topic + "-sub-DLQ").subscribe();
            Consumer<String> consumer = shared(client, topic).negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS)
                    .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(1).build()).subscribe();
            send(client, topic, prefix, 5);
            for (int number = 0; number < 10; number++) {
                consumer.negativeAcknowledge(next(consumer));
            }
            // The client moves what comes once more, which it does when it asks for the next message.
            nothing(consumer);
            gather(dead, prefix, 5);
            nothing(dead);
        }
    }

    static void retriesEnd(PulsarClient client) throws Exception {
        String topic = topic();
        int rounds = 4;
        Consumer<String> dead = shared(client, topic + "-sub-DLQ").subscribe();
        Consumer<String> consumer = shared(client, topic).enableRetry(true)
                .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(rounds).build()).subscribe();
        send(client, topic, "stubborn-", 1);
        for (int round = 0; round <= rounds; round++) {
            consumer.reconsumeLater(next(consumer), 100, TimeUnit.MILLISECONDS);
        }
        gather(dead, "stubborn-", 1);
        nothing(consumer);
    }

    static void retryNotEarly(PulsarClient client) throws Exception {
        String topic = topic();
        Consumer<String> consumer = shared(client, topic).enableRetry(true).subscribe();
        send(client, topic, "later-", 1);
        Message<String> first = next(consumer);
        long began = System.currentTimeMillis();
        consumer.reconsumeLater(first, 1500, TimeUnit.MILLISECONDS);
        Message<String> second = next(consumer);
        long waited = System.currentTimeMillis() - began;
        check(waited >= 1500, "it came after " + waited + " ms");
        check(second.getValue().equals("later-0"), "there came " + second.getValue());
        consumer.acknowledge(second);
    }

    // Delay

    static void delayed(PulsarClient client, SubscriptionType type, boolean byKey) throws Exception {
        String topic = topic();
        Consumer<String> consumer = shared(client, topic).subscriptionType(type).subscribe();
        int count = 60;
        try (Producer<String> producer = client.newProducer(Schema.STRING).topic(topic).enableBatching(true)
                .batcherBuilder(byKey ? BatcherBuilder.KEY_BASED : BatcherBuilder.DEFAULT).create()) {
            for (int number = 0; number < count; number++) {
                long due = System.currentTimeMillis() + 500 + number % 7 * 200;
                var message = producer.newMessage().key("k" + number % 5).value(String.valueOf(due));
                (byKey ? message.deliverAt(due) : message.deliverAfter(due - System.currentTimeMillis(), TimeUnit.MILLISECONDS))
                        .property("number", String.valueOf(number)).sendAsync();
            }
            producer.flush();
        }
        Set<String> found = new HashSet<>();
        while (found.size() < count) {
            Message<String> message = next(consumer);
            long due = Long.parseLong(message.getValue());
            // deliverAfter begins a little after the instant that the value was made of.
            check(System.currentTimeMillis() >= due - (byKey ? 0 : 1), "a message was early");
            check(found.add(message.getProperty("number")), "a message came twice");
            consumer.acknowledge(message);
        }
        nothing(consumer);
    }

    static void mixed(PulsarClient client) throws Exception {
        String topic = topic();
        Consumer<String> consumer = shared(client, topic).subscribe();
        try (Producer<String> producer = client.newProducer(Schema.STRING).topic(topic).enableBatching(true).create()) {
            for (int number = 0; number < 200; number++) {
                var message = producer.newMessage().value("mixed-" + number);
                (number % 10 == 0 ? message.deliverAfter(300, TimeUnit.MILLISECONDS) : message).sendAsync();
            }
            producer.flush();
        }
        gather(consumer, "mixed-", 200);
        nothing(consumer);
    }

    // Ack timeout

    static void ackTimeout(PulsarClient client, Consumer<String> consumer) throws Exception {
        Message<String> first = next(consumer);
        Message<String> second = next(consumer);
        check(!first.getMessageId().equals(second.getMessageId()), "two messages have one id");
        consumer.acknowledge(first);
        Message<String> again = next(consumer);
        check(again.getValue().equals(second.getValue()), "there came " + again.getValue());
        consumer.acknowledge(again);
        check(consumer.receive(3, TimeUnit.SECONDS) == null, "a message came after it was acknowledged");
    }

    static void ackTimeoutOnTwoTopics(PulsarClient client) throws Exception {
        String[] topics = {topic(), topic()};
        Consumer<String> consumer = shared(client, topics).ackTimeout(1500, TimeUnit.MILLISECONDS).subscribe();
        for (String topic : topics) {
            send(client, topic, topic, 1);
        }
        ackTimeout(client, consumer);
    }

    static void ackTimeoutOnTwoPartitions(PulsarClient client) throws Exception {
        String topic = topic();
        partitions(topic, 2);
        Consumer<String> consumer = shared(client, topic).ackTimeout(1500, TimeUnit.MILLISECONDS).subscribe();
        for (int number = 0; number < 2; number++) {
            send(client, topic + "-partition-" + number, "of-" + number + "-", 1);
        }
        ackTimeout(client, consumer);
    }

    static void ackTimeoutCounts(PulsarClient client) throws Exception {
        String topic = topic();
        Consumer<String> consumer = shared(client, topic).ackTimeout(1000, TimeUnit.MILLISECONDS).subscribe();
        send(client, topic, "counted-", 1);
        for (int count = 0; count < 3; count++) {
            Message<String> message = next(consumer);
            check(message.getRedeliveryCount() == count, "redelivery count " + message.getRedeliveryCount());
        }
    }

    static void ackTimeoutDeadLetter(PulsarClient client) throws Exception {
        String topic = topic();
        Consumer<String> dead = shared(client, topic + "-sub-DLQ").subscribe();
        Consumer<String> consumer = shared(client, topic).ackTimeout(1000, TimeUnit.MILLISECONDS)
                .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(1).build()).subscribe();
        send(client, topic, "dead-", 1);
        next(consumer);
        next(consumer);
        check(consumer.receive(5, TimeUnit.SECONDS) == null, "it came a third time");
        gather(dead, "dead-", 1);
    }

    static void negativeAcknowledgement(PulsarClient client) throws Exception {
        String topic = topic();
        Consumer<String> consumer = shared(client, topic).negativeAckRedeliveryDelay(200, TimeUnit.MILLISECONDS).subscribe();
        send(client, topic, "refused-", 5);
        for (int number = 0; number < 5; number++) {
            consumer.negativeAcknowledge(next(consumer));
        }
        gather(consumer, "refused-", 5);
        nothing(consumer);
    }
}
