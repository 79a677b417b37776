"""The bank behind Django: `python -m examples.bank.with_django [--url URL] [--port 8000] [--database bank.db]`.

Without `--url` on a cluster of its own. Django's database is for Django; the balances are in the view, which only the
log changes. Try it:

    curl -X POST 'localhost:8000/transfers?source=0&target=7&amount=100&order=a1'
    curl localhost:8000/accounts/7
"""

from __future__ import annotations

import sys
from sqlite3 import Cursor

import django
from django.conf import settings
from django.core.servers.basehttp import run
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, JsonResponse
from django.urls import URLPattern, path
from django.views.decorators.http import require_GET, require_POST

import waltz_sync as waltz
from examples.bank.model import balance, open_view, transfer
from examples.bank.options import options_of
from examples.bank.orders import order_of

PATIENCE = 10.0  # seconds that a request may take
PARTITION = 0  # accounts between which money moves are in one partition


def urls(bank: waltz.Application[Cursor]) -> list[URLPattern]:
    """The paths of the bank; the threads of the server share one client."""

    @require_POST
    def order_transfer(request: HttpRequest) -> JsonResponse:
        try:
            source, target, amount, order = order_of(request.GET)
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
            return JsonResponse({"detail": "the outcome is unknown: send the same order again"}, status=503)
        except waltz.KeyReusedError as error:
            return JsonResponse({"detail": str(error)}, status=409)
        except ValueError as error:
            return JsonResponse({"detail": str(error)}, status=400)
        if receipt is None:
            return JsonResponse({"detail": f"account {source} has too little"}, status=409)
        return JsonResponse({"transaction": int(receipt)}, status=201)

    @require_GET
    def show_account(request: HttpRequest, account: int) -> JsonResponse:
        amount, mark = bank.read(balance, account, partition=PARTITION, fresh=True, timeout=PATIENCE)
        return JsonResponse({"balance": amount, "mark": mark})

    return [path("transfers", order_transfer), path("accounts/<int:account>", show_account)]


def main() -> None:
    """The command line."""
    with (
        options_of(sys.argv[1:], __doc__) as options,
        waltz.open_client(options.url) as client,
        client.materialize(open_view(options.database), [PARTITION]) as bank,
    ):
        # Orders come from programs, not from forms of a browser, so there is no CSRF middleware to pass.
        settings.configure(ROOT_URLCONF=tuple(urls(bank)), ALLOWED_HOSTS=["localhost", "127.0.0.1"], MIDDLEWARE=[])
        django.setup()
        run("127.0.0.1", options.port, get_wsgi_application(), threading=True)


if __name__ == "__main__":
    main()
