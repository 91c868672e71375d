"""Submits one tool call from Python and prints its reply.

    pip install pika
    python examples/producer.py CONVERSATION TURN TOOL ARGS_AS_JSON

The broker is AMQP_URL, the queues' prefix CALLONCE_PREFIX. The key goes to standard error before the
job is sent: whatever happens then, the call can be looked up by it (`callonce ledger show KEY`).
"""

import hashlib
import json
import os
import sys
import uuid

import pika


def idempotency_key(conversation_id, turn_index, name, args, ordinal=0):
    canonical = json.dumps(args, sort_keys=True, separators=(",", ":"))
    material = "|".join([conversation_id, str(turn_index), name, str(ordinal), canonical])
    return hashlib.sha256(material.encode("utf-8")).hexdigest()[:32]


def main(conversation_id, turn_index, name, args):
    job = {
        "conversation_id": conversation_id,
        "turn_index": int(turn_index),
        "name": name,
        "args": json.loads(args),
    }
    print(idempotency_key(**job), file=sys.stderr, flush=True)

    connection = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"]))
    channel = connection.channel()
    channel.confirm_delivery()
    reply_queue = channel.queue_declare("", exclusive=True).method.queue
    correlation_id = str(uuid.uuid4())
    channel.basic_publish(
        exchange="",
        routing_key=os.environ.get("CALLONCE_PREFIX", "callonce") + ".jobs",
        body=json.dumps(job).encode("utf-8"),
        properties=pika.BasicProperties(
            content_type="application/json",
            delivery_mode=pika.DeliveryMode.Persistent,
            reply_to=reply_queue,
            correlation_id=correlation_id,
        ),
        mandatory=True,
    )
    for _, properties, body in channel.consume(reply_queue, auto_ack=True, inactivity_timeout=60):
        if body is None:
            sys.exit("no reply within 60 s: look the call up by its key, do not make another one")
        # Replies are at least once: one for another request may come too.
        if properties.correlation_id == correlation_id:
            print(body.decode("utf-8"))
            break
    connection.close()


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
