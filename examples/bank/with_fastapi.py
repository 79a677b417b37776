"""The bank behind FastAPI: `python -m examples.bank.with_fastapi [--url URL] [--port 8000] [--database bank.db]`.

Without `--url` on a cluster of its own. Try it:

    curl -X POST 'localhost:8000/transfers?source=0&target=7&amount=100&order=a1'
    curl localhost:8000/accounts/7
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from sqlite3 import Cursor
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException

import waltz_asyncio as waltz
from examples.bank.model import balance, open_view, transfer
from examples.bank.options import options_of

PATIENCE = 10.0  # seconds that a request may take
PARTITION = 0  # accounts between which money moves are in one partition


def make(url: str, database: str) -> FastAPI:
    """The application; its client lives as long as it does, in the process that serves."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        async with (
            waltz.open_client(url) as client,
            client.materialize(open_view(database), [PARTITION]) as bank,
        ):
            app.state.bank = bank
            yield {}

    app = FastAPI(lifespan=lifespan)

    @app.post("/transfers", status_code=201)
    async def order_transfer(source: int, target: int, amount: int, order: str) -> dict[str, int]:
        bank: waltz.Application[Cursor] = app.state.bank
        try:
            async with asyncio.timeout(PATIENCE):
                receipt = await bank.submit(
                    transfer, source, target, amount, order, partition=PARTITION, until="applied", key=order
                )
        except TimeoutError:
            raise HTTPException(503, "the outcome is unknown: send the same order again") from None
        except waltz.KeyReusedError as error:
            raise HTTPException(409, str(error)) from None
        except ValueError as error:
            raise HTTPException(422, str(error)) from None
        if receipt is None:
            raise HTTPException(409, f"account {source} has too little")
        return {"transaction": int(receipt)}

    @app.get("/accounts/{account}")
    async def show_account(account: int) -> dict[str, int]:
        bank: waltz.Application[Cursor] = app.state.bank
        amount, mark = await bank.read(balance, account, partition=PARTITION, fresh=True)
        return {"balance": amount, "mark": mark}

    return app


def main() -> None:
    """The command line."""
    with options_of(sys.argv[1:], __doc__) as options:
        uvicorn.run(make(options.url, options.database), port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
