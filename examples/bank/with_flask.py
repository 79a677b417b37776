"""The bank behind Flask: `python -m examples.bank.with_flask [--url URL] [--port 8000] [--database bank.db]`.

Without `--url` on a cluster of its own. Under gunicorn open the client in `post_fork`: it belongs to one process.
Try it:

    curl -X POST 'localhost:8000/transfers?source=0&target=7&amount=100&order=a1'
    curl localhost:8000/accounts/7
"""

from __future__ import annotations

import sys
from sqlite3 import Cursor
from typing import Any

from flask import Flask, request

import waltz_sync as waltz
from examples.bank.model import balance, open_view, transfer
from examples.bank.options import options_of
from examples.bank.orders import order_of

PATIENCE = 10.0  # seconds that a request may take
PARTITION = 0  # accounts between which money moves are in one partition


def make(bank: waltz.Application[Cursor]) -> Flask:
    """The application; its threads share one client."""
    app = Flask(__name__)

    @app.post("/transfers")
    def order_transfer() -> tuple[dict[str, Any], int]:
        try:
            source, target, amount, order = order_of(request.args)
            receipt = bank.submit(
                transfer,
                source,
                target,
                amount,
                order,
                partition=PARTITION,
                until="applied",
                key=order,
                timeout=PATIENCE,
            )
        except TimeoutError:
            return {"detail": "the outcome is unknown: send the same order again"}, 503
        except waltz.KeyReusedError as error:
            return {"detail": str(error)}, 409
        except ValueError as error:
            return {"detail": str(error)}, 400
        if receipt is None:
            return {"detail": f"account {source} has too little"}, 409
        return {"transaction": int(receipt)}, 201

    @app.get("/accounts/<int:account>")
    def show_account(account: int) -> dict[str, int]:
        amount, mark = bank.read(balance, account, partition=PARTITION, fresh=True, timeout=PATIENCE)
        return {"balance": amount, "mark": mark}

    return app


def main() -> None:
    """The command line."""
    with (
        options_of(sys.argv[1:], __doc__) as options,
        waltz.open_client(options.url) as client,
        client.materialize(open_view(options.database), [PARTITION]) as bank,
    ):
        make(bank).run(port=options.port, threaded=True)


if __name__ == "__main__":
    main()
