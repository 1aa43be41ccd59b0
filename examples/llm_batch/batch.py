"""
Summarize the documents of many customers within the limits of one provider.

The provider sells tokens per second and calls at once. Both are a gate that all customers share; a
call's cost are its tokens. Run it by `python -m examples.llm_batch.run`.
"""

from __future__ import annotations

import json
import os
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from examples.llm_batch.provider import CALLS_AT_ONCE, TOKENS_PER_SECOND
from laneway import DestinationUnavailable, Laneway

ANSWER_TOKENS = 50

app = Laneway(program="llm-batch")
app.gate(
    "provider",
    rate=0.95 * TOKENS_PER_SECOND,  # the provider's clock is another one
    burst=TOKENS_PER_SECOND // 2,
    concurrency=CALLS_AT_ONCE,
)
app.policy("summaries.*", gate="provider", retries=5)


def tokens_of(text: str) -> int:
    """What a call uses: about four characters a token, and the answer."""
    return len(text) // 4 + ANSWER_TOKENS


@app.task(topic="summaries.{customer}", id="{document}")
def summarize(customer: str, document: int, text: str) -> str:
    """The provider's summary; each customer is a topic, so a large batch delays nobody else."""
    asked = {
        "customer": customer,
        "document": document,
        "text": text,
        "tokens": tokens_of(text),
    }
    request = Request(os.environ["PROVIDER_URL"], json.dumps(asked).encode())  # the address is ours
    try:
        with urlopen(request, timeout=30) as answer:
            return str(json.load(answer)["summary"])
    except HTTPError as error:
        if error.code != 429:
            raise
        wait = error.headers.get("retry-after", "1")
        raise DestinationUnavailable(retry_after=float(wait)) from error


def submit(customer: str, document: int, text: str) -> None:
    """Put a document into the batch; a document that is submitted again is a duplicate."""
    summarize.using(cost=tokens_of(text)).enqueue(customer, document, text)
