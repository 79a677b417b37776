"""`waltz seal`, `waltz prove` and `waltz check-proof`."""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from pathlib import Path
from typing import Any

from waltz_core.base.ids import req_client, req_sequence
from waltz_core.operations.merkle import ProofError
from waltz_core.operations.transparency import TEXT_MAX, InclusionProof, SignedCheckpoint, parse_checkpoint
from waltz_core.storage.record_codec import decode_run
from waltz_spark.audit.coverage import EXIT_STATUS, FAILED, PASSED, UNPROVEN, worst
from waltz_spark.cli.main import progress
from waltz_spark.cli.options import log_options, log_parser
from waltz_spark.seal.keys import load_signer, load_verifier, make_key, public_path
from waltz_spark.seal.places import put_text, read_text
from waltz_spark.seal.sealing import PartitionSeal, SealedLog, check_proof, compare, prove_growth, prove_record, seal
from waltz_trio.cli.help import Lines, Parser, UsageError, whole_number

_STATUS = "Exit status: 0 all of it was looked at and is right, 1 something is wrong, 3 something was not looked at."


# ---- waltz seal ----------------------------------------------------------------------------------


def make_seal_parser() -> Parser:
    """Of `waltz seal`."""
    parser = Parser(
        prog="waltz seal",
        description="Seals a log: a Merkle tree over the records of each partition, and a signed checkpoint of it. Run "
        "it as often as you like: it goes on where the last run stopped. Give the checkpoints to somebody "
        f"else to keep; what they hold cannot be changed unnoticed any more. {_STATUS}",
        epilog="also:\n  waltz seal --new-key ledger.key --name example.com/ledger\n"
        "  waltz seal --seal SEAL --key ledger.key.pub --check -c tools.yml --archive ARCHIVE",
        formatter_class=Lines,
        example="waltz seal --seal SEAL --key ledger.key -c tools.yml",
    )
    log_parser(parser)
    parser.add_argument(
        "--seal", metavar="PLACE", help="where the seal is: a folder, or the URI of a bucket (s3://...)"
    )
    parser.add_argument("--key", type=Path, metavar="FILE", help="the private key; with --check the public one")
    parser.add_argument("--check", action="store_true", help="compare the log with its seal instead; writes nothing")
    parser.add_argument("--new-key", type=Path, metavar="FILE", help="only make a key: FILE, and FILE.pub for others")
    parser.add_argument("--name", default="waltz.log", metavar="NAME", help="with --new-key: who signs (waltz.log)")
    parser.add_argument("-j", "--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.set_defaults(run=_seal, words=parser.prog)
    return parser


def _seal(arguments: argparse.Namespace) -> int:
    if arguments.new_key is not None:
        return _new_key(arguments)
    if arguments.seal is None or arguments.key is None:
        raise UsageError("say where the seal is (--seal PLACE), and whose it is (--key FILE)")
    log_and_seal = SealedLog(log_options(arguments), arguments.seal, read_only=arguments.check)
    with closing(log_and_seal) as log, progress(arguments, "seal") as on_progress:
        if arguments.check:
            rows = compare(log, load_verifier(arguments.key), on_progress)
        else:
            rows = seal(log, load_signer(arguments.key), on_progress)
    verdict = worst(row.verdict for row in rows)
    if not any(row.size for row in rows) and verdict == PASSED:
        verdict = UNPROVEN  # an empty log: nothing was checked
    found = {"verdict": verdict, "seal": arguments.seal, "partitions": [_row(row) for row in rows]}
    print(json.dumps(found, indent=2) if arguments.json else "\n".join(_lines(rows, verdict, arguments.check)))
    return EXIT_STATUS[verdict]


def _new_key(arguments: argparse.Namespace) -> int:
    signer = make_key(arguments.new_key, arguments.name)
    public = public_path(arguments.new_key)
    found = {"private": str(arguments.new_key), "public": str(public), "key": str(signer.public)}
    text = f"{arguments.new_key}: keep it secret, and a copy of it safe\n{public}: for whoever checks proofs"
    print(json.dumps(found, indent=2) if arguments.json else f"{text}\n{signer.public}")
    return 0


def _row(row: PartitionSeal) -> dict[str, Any]:
    return {
        "partition": row.partition,
        "verdict": row.verdict,
        "sealed": row.size,
        "looked_at": row.looked_at,
        "beyond": row.beyond,
        "root": row.root or None,
        "problem": row.problem or None,
    }


def _lines(rows: list[PartitionSeal], verdict: str, checked: bool) -> list[str]:
    what = "compared" if checked else "added"
    lines = [f"{'partition':>9} {'sealed':>14} {what:>14} {'not sealed':>12}  root"]
    lines += [
        f"{row.partition:>9} {row.size:>14,} {row.looked_at:>14,} {row.beyond:>12,}  {row.problem or row.root}"
        for row in rows
    ]
    size, looked = sum(row.size for row in rows), sum(row.looked_at for row in rows)
    if checked:
        said = {
            PASSED: f"unchanged: all {size:,} sealed records are what they were",
            FAILED: "CHANGED: the log is not what was sealed",
            UNPROVEN: f"unproven: {looked:,} of {size:,} sealed records were compared, none differs",
        }
    else:
        said = {
            PASSED: f"sealed: {size:,} records, {looked:,} of them new",
            FAILED: "FAILED: not everything could be sealed",
            UNPROVEN: f"unproven: {size:,} records are sealed, not everything could be read",
        }
    if verdict == UNPROVEN and not size and not any(row.problem for row in rows):
        said[UNPROVEN] = "unproven: the log is empty, and nothing is sealed: there was nothing to look at"
    return [*lines, said[verdict]]


# ---- waltz prove ---------------------------------------------------------------------------------


def make_prove_parser() -> Parser:
    """Of `waltz prove`."""
    parser = Parser(
        prog="waltz prove",
        description="Writes a proof that stands by itself: that a transaction is in a sealed log, with its content "
        "(--transaction), or that the log still begins with what an older checkpoint sealed (--since). "
        "Whoever has the public key checks it with `waltz check-proof`, without the log.",
        epilog="also:\n  waltz prove --seal SEAL --key ledger.key.pub -p 0 --since january.checkpoint -c tools.yml",
        formatter_class=Lines,
        example="waltz prove --seal SEAL --key ledger.key.pub -p 0 --transaction 4711 -c tools.yml --to 4711.proof",
    )
    log_parser(parser)
    parser.add_argument("--seal", required=True, metavar="PLACE", help="where the seal is: a folder, or a URI")
    parser.add_argument("--key", type=Path, required=True, metavar="FILE", help="the public key of the seal")
    parser.add_argument("-p", "--partition", type=whole_number(0), required=True, metavar="N", help="partition id")
    text = "prove that this transaction is in the log"
    parser.add_argument("--transaction", type=whole_number(0), metavar="ID", help=text)
    parser.add_argument("--since", metavar="FILE", help="prove growth since this checkpoint: a file, or a URI")
    parser.add_argument("--to", metavar="FILE", help="where the proof goes: a file, or a URI (standard output)")
    parser.add_argument("-j", "--json", action="store_true", help="print one JSON object that holds the proof")
    parser.set_defaults(run=_prove, words=parser.prog)
    return parser


def _prove(arguments: argparse.Namespace) -> int:
    if (arguments.transaction is None) == (arguments.since is None):
        raise UsageError("say what to prove: --transaction ID or --since CHECKPOINT")
    key = load_verifier(arguments.key)
    with closing(SealedLog(log_options(arguments), arguments.seal, read_only=True)) as log:
        if arguments.since is not None:
            text = str(prove_growth(log, arguments.partition, _checkpoint(arguments.since), key))
        else:
            text = str(prove_record(log, arguments.partition, arguments.transaction, key))
    if arguments.to is not None:
        put_text(arguments.to, text.encode())
    if arguments.json:
        print(json.dumps({"proof": text, "file": arguments.to}, indent=2))
    elif arguments.to is None:
        print(text, end="")
    else:
        print(f"{arguments.to}: check it with waltz check-proof --key {arguments.key} {arguments.to}")
    return 0


def _checkpoint(place: str) -> SignedCheckpoint:
    text = _text_of(place)
    try:
        return parse_checkpoint(text)
    except ProofError as error:
        raise ProofError(f"{place}: {error}") from error


def _text_of(place: str) -> str:
    raw = read_text(place)
    if len(raw) > TEXT_MAX:
        raise ProofError(f"{place}: expected at most {TEXT_MAX:,} bytes")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise ProofError(f"{place}: expected text, found bytes that are none") from None


# ---- waltz check-proof ---------------------------------------------------------------------------


def make_check_parser() -> Parser:
    """Of `waltz check-proof`."""
    parser = Parser(
        prog="waltz check-proof",
        description="Checks a proof of `waltz prove` with the public key alone. "
        "Exit status: 0 the proof holds, 1 it does not.",
        epilog="also:\n  waltz check-proof --key ledger.key.pub --since january.checkpoint growth.proof",
        formatter_class=Lines,
        example="waltz check-proof --key ledger.key.pub 4711.proof",
    )
    parser.add_argument("proof", metavar="PROOF", help="file or URI of the proof")
    parser.add_argument("--key", type=Path, required=True, metavar="FILE", help="the public key that you trust")
    parser.add_argument("--since", metavar="FILE", help="the older checkpoint, for a proof of growth")
    parser.add_argument("-j", "--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_check, words=parser.prog)
    return parser


def _check(arguments: argparse.Namespace) -> int:
    key = load_verifier(arguments.key)
    old = None if arguments.since is None else _checkpoint(arguments.since)
    proof = check_proof(_text_of(arguments.proof), key, old)
    now = proof.signed.checkpoint
    output: dict[str, Any] = {"holds": True, "origin": now.origin, "size": now.size, "signed_by": key.name}
    if isinstance(proof, InclusionProof):
        records, _ = decode_run(proof.content, proof.index, 1)
        if not records:
            raise ProofError(f"the proof holds, but of bytes that are no record of transaction {proof.index}")
        record = records[0]
        output |= {
            "transaction": proof.index,
            "client": req_client(record.req_id),
            "sequence": req_sequence(record.req_id),
            "header": record.header,
            "payload": record.data.hex(),
        }
        about = f"header {record.header}, {len(record.data):,} bytes of payload"
        text = f"transaction {proof.index} ({about}) is in the log"
    else:
        output["since"] = proof.old_size
        text = f"the log still begins with the {proof.old_size:,} records of the older checkpoint"
    said = f"{text}\n{now.origin} up to {now.size:,} records, signed by {key.name}"
    print(json.dumps(output, indent=2) if arguments.json else said)
    return 0
