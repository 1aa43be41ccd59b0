"""A channel: where queues are declared, and messages published and consumed."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from kombu.transport import base, virtual

from laneway import BadMessage, Delivery, Laneway, Refused, arguments
from laneway.contrib.kombu import bindings, messages, names
from laneway.contrib.kombu.inbox import Inbox
from laneway.contrib.kombu.pump import BUFFER, Pump
from laneway.contrib.kombu.qos import QoS

log = logging.getLogger("laneway.kombu")

LEASE_SECONDS = 9.0
"""How long a message of a worker that died is not delivered again; `lease` of the options."""

MOST_HELD = 1 << 16
"""How many messages `basic_get` may hold."""

FORGET_AFTER = 300.0
"""Seconds after which the subscription of a temporary queue is removed that nobody consumes."""

RENEWALS = 3
"""How often a subscription is renewed in this time."""


class Connected(Protocol):
    """What a channel needs of its connection, the transport."""

    app: Laneway
    client: Any
    inbox: Inbox[tuple[Channel, Delivery]]


class Consumer(NamedTuple):
    """Who gets the messages of a queue."""

    callback: Callable[[Any], object]
    no_ack: bool


class Channel(virtual.Channel):
    """
    A channel of a connection.

    The channel leases by two pumps: one for the topics of queues, whose pool and fair order are
    those of the options, and one for the topics of exchanges (`names.OWN`).
    """

    supports_fanout = True
    do_restore = False
    body_encoding = None
    from_transport_options = ()

    def __init__(self, connection: Connected, **options: Any) -> None:
        super().__init__(connection, **options)
        settings = connection.client.transport_options
        self.closed = False
        self._app: Laneway = connection.app
        self._transport = connection
        self._pool = settings.get("pool", "default")
        self._lease = settings.get("lease", LEASE_SECONDS)
        fair = settings.get("fair") or None
        named = ["*"] if fair is True else [fair] if isinstance(fair, str) else fair
        self._fair = arguments.patterns("broker_transport_options", "fair", named) or []
        self._qos = QoS(self._app, self._set_limits, self._count_leases)
        self._consumed: dict[str, Consumer] = {}
        """By queue."""
        self._queue_of: dict[str, str] = {}
        """By topic: the queue whose consumer gets its messages."""
        self._renew_at: dict[tuple[str, str], float] = {}
        """By exchange and queue: when to renew a temporary queue's subscription (monotonic)."""
        self._queues: Pump | None = None
        self._exchanges: Pump | None = None
        self._gets: Any = None
        """The leases of `basic_get`."""

    # Declaring

    def prepare_queue_arguments(
        self, arguments: dict[str, Any] | None, **options: Any
    ) -> dict[str, Any]:
        """The arguments of a queue with the names that RabbitMQ gave them."""
        return base.to_rabbitmq_queue_arguments(arguments or {}, **options)

    def _new_queue(self, queue: str, **arguments: Any) -> None:
        self.state.queues[queue] = arguments

    def _has_queue(self, queue: str, **_: object) -> bool:
        if queue in self.state.queues:
            return True
        stats = self._app.topic(names.queue(queue)).stats()
        return bool(stats.published or stats.waiting or stats.leased)

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: dict[str, Any] | None = None,
        **_: object,
    ) -> None:
        """Bind a queue to an exchange; that to a fanout or topic exchange is a subscription."""
        exchange = exchange or "amq.direct"
        self.state.exchanges.setdefault(exchange, {"type": "direct", "table": []})
        is_new = not self.state.has_binding(queue, exchange, routing_key)
        if is_new:
            self.state.binding_declare(queue, exchange, routing_key, arguments)
            meta = self.typeof(exchange).prepare_bind(queue, exchange, routing_key, arguments)
            self.state.exchanges[exchange].setdefault("table", []).append(meta)
        if self.typeof(exchange).type != "direct":
            self._subscribe(exchange, queue)
        if is_new and queue in self._consumed:
            self._serve()

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: dict[str, Any] | None = None,
        **options: object,
    ) -> None:
        """Remove a binding."""
        exchange = exchange or "amq.direct"
        super().queue_unbind(queue, exchange, routing_key, arguments, **options)
        if self.typeof(exchange).type != "direct":
            if self._keys(queue, exchange):
                self._subscribe(exchange, queue)
            else:
                self._unsubscribe(exchange, queue)
        if queue in self._consumed:
            self._serve()

    def _subscribe(self, exchange: str, queue: str) -> None:
        where = None
        if self.typeof(exchange).type == "topic":
            where = bindings.where_of(self._keys(queue, exchange))
        is_temporary = bindings.is_temporary(self.state.queues.get(queue, {}))
        self._app.subscribe(
            names.exchange(exchange),
            names.subscription(queue),
            where=where,
            forget_after=FORGET_AFTER if is_temporary else None,
        )
        if is_temporary:
            self._renew_at[exchange, queue] = time.monotonic() + FORGET_AFTER / RENEWALS

    def _unsubscribe(self, exchange: str, queue: str) -> None:
        """End the subscription of a queue, with what it holds, if there is one."""
        self._renew_at.pop((exchange, queue), None)
        topic = self._app.topic(names.exchange(exchange))
        name = names.subscription(queue)
        if any(each.name == name for each in topic.subscriptions()):
            topic.unsubscribe(name)

    def _keys(self, queue: str, exchange: str) -> list[str]:
        """The routing keys by which a queue is bound to an exchange."""
        return [
            each.routing_key
            for each in self.state.queue_bindings(queue)
            if each.exchange == exchange
        ]

    def _exchanges_of(self, queue: str) -> list[tuple[str, str]]:
        """The exchanges to which a queue is bound, and the routing keys."""
        return [(each.exchange, each.routing_key) for each in self.state.queue_bindings(queue)]

    def _topics_of(self, queue: str) -> tuple[list[str], list[str]]:
        """The topics that a queue's messages are in: of queues, and of exchanges."""
        of_exchanges = []
        for exchange, key in self._exchanges_of(queue):
            if self.typeof(exchange).type != "direct":
                topic = f"{names.exchange(exchange)}#{names.subscription(queue)}"
                of_exchanges.append(topic)
            elif exchange and not exchange == key == queue:
                of_exchanges.append(
                    names.direct(exchange, key, is_durable=self._is_durable(exchange))
                )
        is_temporary = bindings.is_temporary(self.state.queues.get(queue, {}))
        own = [] if is_temporary and of_exchanges else [names.queue(queue)]
        return own, list(dict.fromkeys(of_exchanges))

    def _is_durable(self, exchange: str) -> bool:
        return bool(self.state.exchanges.get(exchange, {}).get("durable", True))

    def _size(self, queue: str) -> int:
        own, of_exchanges = self._topics_of(queue)
        return sum(self._app.topic(each).stats().ready for each in own + of_exchanges)

    def _purge(self, queue: str) -> int:
        own, of_exchanges = self._topics_of(queue)
        return sum(self._app.topic(each).purge() for each in own + of_exchanges)

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: object
    ) -> int:
        """Delete a queue with its messages, bindings and subscriptions."""
        if (if_empty and self._size(queue)) or (if_unused and queue in self._consumed):
            return 0
        own, of_exchanges = self._topics_of(queue)
        count = sum(
            self._app.topic(each).delete() for each in own + of_exchanges if "#" not in each
        )
        for exchange, key in set(self._exchanges_of(queue)):
            super().queue_unbind(queue, exchange, key)
            if self.typeof(exchange).type != "direct":
                self._unsubscribe(exchange, queue)
        self.state.queue_bindings_delete(queue)
        self.state.queues.pop(queue, None)
        return count

    # Publishing

    def basic_publish(
        self, message: dict[str, Any], exchange: str, routing_key: str, **_: object
    ) -> None:
        """Publish a message."""
        self._inplace_augment_message(message, exchange, routing_key)
        kind = self.typeof(exchange).type if exchange else ""
        headers: dict[str, str] | None = None
        if not exchange:
            queues = [routing_key]
        elif kind == "direct":
            queues = self._lookup(exchange, routing_key)
        else:
            queues = []
            if kind == "topic":
                headers = {messages.ROUTING_KEY: routing_key}
        topics = [(names.queue(queue), self._ttl(queue)) for queue in queues]
        if not topics:
            topics = [(self._topic(exchange, kind, routing_key), None)]
        body = messages.body_of(message)
        for topic, ttl in topics:
            options = messages.options_of(message, ttl)
            if headers is not None:
                options["headers"] = headers
            self._app.publish(topic, body, **options)

    def _topic(self, exchange: str, kind: str, routing_key: str) -> str:
        """The topic of a message to an exchange that knows no queue for it here."""
        if kind != "direct":
            return names.exchange(exchange)
        if exchange == routing_key:
            return names.queue(routing_key)
        return names.direct(exchange, routing_key, is_durable=self._is_durable(exchange))

    def _lookup(self, exchange: str, routing_key: str, default: str | None = None) -> list[str]:
        """The queues that are bound to a direct exchange, as far as this process knows."""
        del default
        if exchange not in self.state.exchanges:
            return []
        table = self.get_table(exchange)
        found = self.typeof(exchange).lookup(table, exchange, routing_key, None)
        return [
            queue for queue in found if not bindings.is_temporary(self.state.queues.get(queue, {}))
        ]

    def _ttl(self, queue: str) -> int | None:
        """How many milliseconds a message may wait in a queue, from its declaration."""
        arguments = self.state.queues.get(queue, {}).get("arguments") or {}
        ttl: int | None = arguments.get("x-message-ttl")
        return ttl

    def encode_body(self, body: Any, encoding: str | None = None) -> tuple[Any, str | None]:
        """Text stays readable; bytes become base64."""
        return super().encode_body(body, "base64" if isinstance(body, bytes) else encoding)

    # Consuming

    @property
    def qos(self) -> QoS:
        """The messages that are not settled, and how many there may be."""
        return self._qos

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,
        callback: Callable[[Any], object],
        consumer_tag: str,
        **_: object,
    ) -> None:
        """Consume a queue, or all queues of a pattern like `push.*`."""
        self._tag_to_queue[consumer_tag] = queue
        self._active_queues.append(queue)
        self._consumers.add(consumer_tag)
        self._consumed[queue] = Consumer(callback, no_ack=no_ack)
        self._serve()

    def basic_cancel(self, consumer_tag: str) -> None:
        """Stop to consume; what is not delivered yet is released."""
        if consumer_tag not in self._consumers:
            return
        self._consumers.remove(consumer_tag)
        queue = self._tag_to_queue.pop(consumer_tag)
        self._active_queues.remove(queue)
        if queue not in self._active_queues:
            del self._consumed[queue]
        self._serve()
        ended = self._transport.inbox.remove(
            lambda entry: entry[0] is self and self._queue_of_topic(entry[1].topic) is None
        )
        self._app.release_many([delivery for _, delivery in ended], begun=False)

    def basic_get(self, queue: str, no_ack: bool = False, **_: object) -> Any:
        """Return one message of a queue, or None if it has none."""
        if self._gets is None:
            self._gets = self._app.leases(MOST_HELD, pool=self._pool, lease=self._lease)
        own, of_exchanges = self._topics_of(queue)
        deliveries: list[Delivery] = []
        if own:
            self._gets.serve(topics=own)
            deliveries = self._gets.take(1)
        if not deliveries and of_exchanges:
            with contextlib.suppress(Refused):
                deliveries = self._app.lease(1, pool=names.POOL, topics=of_exchanges)
        for delivery in deliveries:
            if (message := self._message(delivery, queue, no_ack=no_ack)) is not None:
                return message
        return None

    def receive(self, delivery: Delivery) -> bool:
        """Call the consumer of a message. Returns whether it was called."""
        queue = self._queue_of_topic(delivery.topic)
        if queue is None or self.closed:
            self._app.release_many([delivery], begun=False)
            return False
        consumer = self._consumed[queue]
        message = self._message(delivery, queue, no_ack=consumer.no_ack)
        if message is not None:
            consumer.callback(message)
        return message is not None

    def is_of_celery(self, delivery: Delivery) -> bool:
        """Whether the consumer of a message is a worker of Celery, which runs tasks."""
        consumer = self._consumed.get(self._queue_of_topic(delivery.topic) or "")
        reader = getattr(consumer and consumer.callback, "__self__", None)
        function = getattr(reader, "on_message", None)
        return str(getattr(function, "__module__", "")).startswith("celery.worker.")

    def refuse(self, delivery: Delivery, error: Exception) -> None:
        """Make a message a dead letter, because its consumer raised an error of bad data."""
        reason = f"a consumer cannot read message {delivery.id} in {delivery.topic}: {error!r:.200}"
        log.error("%s", reason, exc_info=error)
        self._qos.refuse(delivery.fence, reason)

    def _message(self, delivery: Delivery, queue: str, *, no_ack: bool) -> Any:
        """The message of a delivery, held until it is settled, or None if not for the queue."""
        try:
            payload = messages.payload_of(delivery)
        except BadMessage as error:
            reason = str(error)
            log.warning("%s", reason)
            self._qos.append(delivery)
            self._qos.refuse(delivery.fence, reason)
            return None
        is_bound = self._is_bound(queue, payload["properties"]["delivery_info"])
        self._qos.append(delivery)
        if no_ack or not is_bound:
            self._qos.ack(delivery.fence)
        return self.Message(payload, channel=self) if is_bound else None

    def _is_bound(self, queue: str, info: dict[str, Any]) -> bool:
        """Whether a queue gets a message, by the exchange that it was published to."""
        exchange = info.get("exchange") or ""
        if not exchange or self.typeof(exchange).type != "topic":
            return True
        keys = self._keys(queue, exchange)
        return any(bindings.matches(key, info.get("routing_key") or "") for key in keys)

    def _queue_of_topic(self, topic: str) -> str | None:
        """The consumed queue whose messages are in a topic."""
        queue = self._queue_of.get(topic)
        if queue is not None or topic.startswith(names.OWN):
            return queue
        patterns = [each for each in self._consumed if names.pattern(each) is not None]
        for each in patterns:
            if each == "*" or topic.startswith(each[:-1]):
                return each
        if self._fair and self._consumed:
            return next(iter(self._consumed))
        return None

    # Pumps

    def _serve(self) -> None:
        """Lease the messages of the queues that are consumed now."""
        queue_of: dict[str, str] = {}
        of_queues: list[str] = []
        of_exchanges: list[str] = []
        for queue in self._consumed:
            pattern = names.pattern(queue)
            if pattern is not None:
                of_queues.append(pattern)
                continue
            own, others = self._topics_of(queue)
            queue_of.update(dict.fromkeys(own + others, queue))
            of_queues += own
            of_exchanges += others
        if of_queues and self._fair:
            of_queues = [*dict.fromkeys(self._fair + of_queues)]
        self._queue_of = queue_of
        self._queues = self._served(self._queues, self._pool, of_queues, is_urgent=False)
        self._exchanges = self._served(self._exchanges, names.POOL, of_exchanges, is_urgent=True)

    def _served(
        self, pump: Pump | None, pool: str, topics: Sequence[str], *, is_urgent: bool
    ) -> Pump | None:
        if pump is None:
            if not topics:
                return None

            def hand_over(deliveries: list[Delivery]) -> None:
                unwanted = [
                    delivery
                    for delivery in deliveries
                    if self._queue_of_topic(delivery.topic) is None  # cancelled meanwhile
                ]
                self._app.release_many(unwanted, begun=False)
                entries = [(self, each) for each in deliveries if each not in unwanted]
                self._transport.inbox.put(entries, is_urgent=is_urgent)

            pump = Pump(self._app, pool, self._lease, hand_over, self._renew)
            pump.limit(self._limit())
        pump.serve(topics)
        return pump

    def _renew(self, is_gone: bool) -> None:
        """Subscribe temporary queues again in time; if `is_gone`, all consumed ones."""
        now = time.monotonic()
        renewed = {key for key, at in list(self._renew_at.items()) if at <= now}
        if is_gone:
            renewed |= {
                (exchange, queue)
                for queue in list(self._consumed)
                for exchange, _ in self._exchanges_of(queue)
                if self.typeof(exchange).type != "direct"
            }
        for exchange, queue in renewed:
            self._subscribe(exchange, queue)

    def _limit(self) -> int:
        """How many messages each pump may hold now."""
        return self._qos.prefetch_count or len(self._qos) + BUFFER

    def _count_leases(self) -> int:
        return sum(len(each or ()) for each in (self._queues, self._exchanges, self._gets))

    def _set_limits(self) -> None:
        for pump in (self._queues, self._exchanges):
            if pump is not None:
                pump.limit(self._limit())

    def close(self) -> None:
        """Cancel all consumers, and release what is not settled."""
        if self.closed:
            return
        self.closed = True
        for tag in list(self._consumers):
            self.basic_cancel(tag)
        self._qos.close()
        for each in (self._queues, self._exchanges, self._gets):
            if each is not None:
                each.close()
        if self.connection is not None:
            self.connection.close_channel(self)
        self.exchange_types = None
