"""Bugs that name the test files that must find them: fairness, drivers, views, tools, archive and sink.

The detectors of the corpus (simulated clusters, crashed storage nodes) do not reach most of this code. Only what the
test process itself imports has the bug: tests that start other processes are of no use here.
"""

# ruff: noqa: E501  # lines of the code as they stand there

from __future__ import annotations

from tests.mutants.planted import Mutant

_TURNS = ("tests/unit/server/test_turns.py",)
_FAIRNESS = ("tests/model/test_fairness.py",)
_SERVER = ("tests/model/test_server.py",)
_ADMISSION = ("tests/unit/access/test_admission.py",)
_DIAGNOSIS = ("tests/unit/operations/test_diagnosis.py",)
_STORAGE_NODE = ("tests/unit/storage/test_node.py",)
_STATES = ("tests/trio/test_states.py",)
_VIEWS = ("tests/trio/test_views.py",)
_DATABASES = ("tests/views/test_databases.py",)
_METRICS = ("tests/trio/test_metrics.py",)
_NET = ("tests/trio/test_net.py", "tests/trio/test_hostile_peers.py")
_APPLICATION = ("tests/trio/test_application.py",)
_MANY = ("tests/trio/test_submit_many.py",)
_KEYS = ("tests/trio/test_keys.py",)
_DISK = ("tests/trio/test_storage_disk.py",)
_CRASHES = ("tests/driver_crashes/test_driver_crashes.py",)
_ARCHIVE = ("tests/spark/test_archive.py",)
_AUDIT = ("tests/spark/test_audit.py",)
_SINK = ("tests/spark/test_writing.py", "tests/spark/test_sink.py")

AIMED: tuple[Mutant, ...] = (
    # ---- submits decided together ---------------------------------------------------------------------------------
    Mutant(
        "who waits for a decision is forgotten with the application",
        "waltz_trio.application",
        "                    part, list(part.undecided), ClientClosedError(",
        "                    part, [], ClientClosedError(",
        _MANY,
    ),
    Mutant(
        "a decision is sent whose caller has left",
        "waltz_trio.application",
        "        if call.ended:\n            return  # its caller has left\n",
        "",
        _MANY,
    ),
    Mutant(
        "only one decision for a snapshot",
        "waltz_trio.application",
        "itertools.islice(part.undecided, _DECIDE_AT_ONCE)",
        "itertools.islice(part.undecided, 1)",
        _MANY,
    ),
    # ---- idempotency keys -----------------------------------------------------------------------------------------
    Mutant(
        "a key takes no lock",
        "waltz_trio.calls",
        "write=(*append.write, key_lock(self.key))",
        "write=append.write",
        _KEYS,
    ),
    Mutant(
        "a key is looked for in no snapshot",
        "waltz_trio.calls",
        "return entry or self.decide(state, *self.args)",
        "return self.decide(state, *self.args)",
        _KEYS,
    ),
    Mutant(
        "an append without its key is sent",
        "waltz_trio.calls",
        "        if found is None or found[0] != self.key:\n",
        "        if found is not None and found[0] != self.key:\n",
        _KEYS,
    ),
    Mutant(
        "a member without keys leaves a gap",
        "waltz_trio.sql_view",
        "        if mark != key_mark:\n",
        "        if False:\n",
        _KEYS,
    ),
    Mutant(
        "the last transaction with a key counts",
        "waltz_trio.key_tables",
        '    "WHERE k.TRANSACTION_ID < excluded.TRANSACTION_ID - {window}"\n',
        "",
        _KEYS,
    ),
    # ---- a server shared by its clients ------------------------------------------------------------------------
    Mutant(
        "whoever asks first has every turn",
        "server.turns",
        "                owner.deficit += self._quantum\n                self._ring.rotate(-1)\n",
        "                owner.deficit += self._quantum\n",
        _TURNS,
    ),
    Mutant(
        "a connection of an owner has every turn of his",
        "server.turns",
        "                queue.deficit += self._quantum\n                owner.ring.rotate(-1)\n",
        "                queue.deficit += self._quantum\n",
        _TURNS,
    ),
    Mutant(
        "who has nothing to do saves turns",
        "server.turns",
        "        if not owner.ring:\n            owner.deficit = 0\n",
        "        if not owner.ring:\n",
        _TURNS,
    ),
    Mutant(
        "many connections are many parts",
        "server.turns",
        "return part.owner.amount > fair and part.amount > fair // part.owner.conns",
        "return part.amount > fair",
        _TURNS,
    ),
    Mutant(
        "a connection that is gone still holds its part",
        "server.turns",
        "            part.owner.amount -= part.amount\n            self.total -= part.amount\n",
        "            part.owner.amount -= part.amount\n",
        _TURNS,
    ),
    Mutant(
        "payloads are read for who is gone",
        "server.reads",
        "        self._fetches.gone(peer.conn)\n",
        "",
        _FAIRNESS,
    ),
    Mutant(
        "ranges are read for who is gone",
        "server.reads",
        "        self._ranges.gone(peer.conn)\n",
        "",
        _FAIRNESS,
    ),
    Mutant(
        "appends wait, and all is well",
        "server.commits",
        "        if not self._appender.queued and not self._appender.in_flight:\n            self._waits_since = None\n",
        "        if not self._appender.queued:\n            self._waits_since = None\n",
        _FAIRNESS,
    ),
    Mutant(
        "a refusal is no progress",
        "server.commits",
        'decided = self._appender.commit_mark + self.counters["rejected-append"]',
        "decided = self._appender.commit_mark",
        _FAIRNESS,
    ),
    Mutant(
        "too many locks are decoded",
        "wire.lock_count",
        "        if count <= locks_max:\n",
        "        if count <= 2 * locks_max:\n",
        ("tests/model/test_named_appends.py",),
    ),
    Mutant(
        "read locks are not counted",
        "wire.lock_count",
        "_ARRAYS = {0: 1, 1: 2}",
        "_ARRAYS = {0: 1, 1: 2, 2: 1, 3: 1, 4: 1, 5: 1}",
        ("tests/model/test_named_appends.py",),
    ),
    Mutant(
        "a client takes the place of a member",
        "access.admission",
        "next((one for one in self._unproven if member or one not in self._members), None)",
        "next(iter(self._unproven), None)",
        _ADMISSION,
    ),
    Mutant(
        "the reserve is for everybody",
        "access.admission",
        "limit = places.count_max if member else places.count_max - places.reserved",
        "limit = places.count_max",
        _ADMISSION,
    ),
    Mutant(
        "a keep-alive keeps nothing alive",
        "access.admission",
        "        if conn in self._heard:\n            self._heard[conn] = now\n",
        "",
        _ADMISSION,
    ),
    Mutant(
        "an address never gets its places back",
        "access.admission",
        "        self._counts[address] -= 1\n",
        "",
        _ADMISSION,
    ),
    Mutant(
        "a preference is answered before ZooKeeper has it",
        "server.cluster_port",
        "        if self._preferences_registered and self._preferences.kept:\n",
        "        if self._preferences.kept:\n",
        _SERVER,
    ),
    Mutant(
        "a preference is registered before the assignment heeds it",
        "cluster.registration",
        "        if self._announcing and not self._reassign:\n",
        "        if self._announcing:\n",
        ("tests/unit/cluster/test_coordinator.py",),
    ),
    Mutant(
        "a storage node that is back ends no back-off",
        "server.ownership",
        "        if self.phase is Phase.WAITING:\n            self._retry_ms = 0\n            self._begin(now)\n",
        "        if self.phase is Phase.WAITING:\n            self._retry_ms = 0\n",
        ("tests/unit/server/test_partition.py",),
    ),
    Mutant(
        "a storage node is dialed ever more rarely",
        "store.pool",
        "self._retry_max_ms = min(retry_max_ms, _DIAL_PAUSE_MAX_MS)",
        "self._retry_max_ms = retry_max_ms",
        ("tests/unit/store/test_pool.py",),
    ),
    Mutant(
        "requests are parked without a limit of bytes",
        "storage.peers",
        "much = len(peer.parked) > config.parked_count_max or peer.parked_bytes > config.parked_bytes_max",
        "much = len(peer.parked) > config.parked_count_max",
        _STORAGE_NODE,
    ),
    Mutant(
        "bytes that were parked once count for ever",
        "storage.peers",
        "        if not peer.parked:\n            peer.parked_bytes = 0\n",
        "",
        _STORAGE_NODE,
    ),
    # ---- the client ----------------------------------------------------------------------------------------------
    Mutant(
        "a cluster that never answers is waited for",
        "client.node",
        "if self._connect_by is not None and now >= self._connect_by:",
        "if self._connect_by is not None and now >= self._connect_by + 10**9:",
        ("tests/unit/client/test_membership.py",),
    ),
    Mutant(
        "a client that works is ended by its connect time-out",
        "client.node",
        '        """The cluster gave us an id; calls that waited for it are carried out."""\n        self._connect_by = None\n',
        '        """The cluster gave us an id; calls that waited for it are carried out."""\n',
        ("tests/unit/client/test_membership.py",),
    ),
    Mutant(
        "nobody warns of a lock in two partitions",
        "waltz_trio.client",
        "home = homes.setdefault(lock, partition)",
        "home = homes[lock] = partition",
        ("tests/trio/test_arguments.py",),
    ),
    Mutant(
        "the limit of locks counts each kind for itself",
        "waltz_trio.client",
        "lock_hashes(append.read, names, limit - len(write))",
        "lock_hashes(append.read, names, limit)",
        ("tests/trio/test_arguments.py",),
    ),
    Mutant(
        "a receipt of the first transaction is a decline",
        "waltz_trio.values",
        "        return True  # or `if receipt` would take transaction 0 for a decline\n",
        "        return int(self) != 0\n",
        ("tests/trio/test_values.py",),
    ),
    # ---- the doctor ----------------------------------------------------------------------------------------------
    Mutant(
        "a consequence is a cause",
        "operations.findings",
        "            below[root].append(number)\n",
        "            below[root].append(number)\n            roots.append(number)\n            below.setdefault(number, [])\n",
        _DIAGNOSIS,
    ),
    Mutant(
        "a finding goes below its latest cause",
        "operations.findings",
        "root = min(causes)",
        "root = max(causes)",
        _DIAGNOSIS,
    ),
    Mutant(
        "giving data up is advised at once",
        "operations.diagnosis",
        "    if status.since_ms < LAST_RESORT_AFTER_MS:\n",
        "    if status.since_ms < SETTLE_MS:\n",
        _DIAGNOSIS,
    ),
    Mutant(
        "a recovery that waits for ever may settle",
        "operations.diagnosis",
        "settles=status.since_ms < SETTLE_MS and not _forgotten(view, status.partition_id),",
        "settles=True,",
        _DIAGNOSIS,
    ),
    Mutant(
        "the last replica that may go is not named",
        "operations.diagnosis",
        "        elif ready_count == needed:\n",
        "        elif ready_count < needed:\n",
        _DIAGNOSIS,
    ),
    # ---- drivers -------------------------------------------------------------------------------------------------
    Mutant(
        "a file is replaced before it is synced",
        "waltz_trio.durable",
        "        write_all(fd, data)\n        sync_data(fd)\n    finally:\n        close(fd)\n    rename(fresh, path)\n",
        "        write_all(fd, data)\n    finally:\n        close(fd)\n    rename(fresh, path)\n",
        _CRASHES,
    ),
    Mutant(
        "the name of a replaced file is not synced",
        "waltz_trio.durable",
        "    rename(fresh, path)\n    sync_directory(path.parent)\n",
        "    rename(fresh, path)\n",
        _CRASHES,
    ),
    Mutant(
        "directories that were made are not named durably",
        "waltz_trio.durable",
        "        make_directory(one, mode)\n        sync_directory(one.parent)",
        "        make_directory(one, mode)\n        sync_directory(one)",
        _CRASHES,
    ),
    Mutant(
        "a failed sync of the file system is believed",
        "waltz_trio.storage.syncs",
        "        except OSError:\n            return self._several(wanted)  # somebody's error: each of ours is asked for itself\n",
        "        except OSError:\n            return {}\n",
        _DISK,
    ),
    Mutant(
        "a file elsewhere is synced with the directory",
        "waltz_trio.storage.files",
        "return file is not None and file.device == self._root.device",
        "return file is not None",
        _DISK,
    ),
    Mutant(
        "an error of one file hides those of others",
        "waltz_trio.storage.syncs",
        "            failures.update(failed)\n",
        "            failures = failed\n",
        _DISK,
    ),
    Mutant(
        "a journal answers before its sync",
        "waltz_trio.journal",
        "            if any(write.sync for write in writes):\n                durable.sync_data(file.handle)\n",
        "",
        _CRASHES,
    ),
    Mutant(
        "the file of a failed write goes on",
        "waltz_trio.journal",
        "        except Exception as error:  # of any type: this thread serves every partition\n            self._leave(partition_id)\n",
        "        except Exception as error:  # of any type: this thread serves every partition\n",
        ("tests/trio/test_journal.py",),
    ),
    Mutant(
        "the end of a connection that is not read goes unseen",
        "waltz_trio.net.channel",
        "                self._owner.ends.watch(descriptor, self._gone)\n",
        "                pass\n",
        _NET,
    ),
    Mutant(
        "one surprise ends the process",
        "waltz_trio.process",
        '        except Exception as error:\n            self._complain(peer, f"the connection ended by an error in this process: {described(error)}")\n',
        "        except ZeroDivisionError as error:\n            self._complain(peer, described(error))\n",
        _NET,
    ),
    Mutant(
        "a handshake that was given up keeps its place",
        "waltz_trio.process",
        "                accepted = pipe in self._shaking\n                self._shaking.pop(pipe, None)\n",
        "                accepted = pipe in self._shaking\n",
        _NET,
    ),
    Mutant(
        "everybody makes metrics of his own",
        "waltz_trio.metrics",
        "self.reading(lambda: self._recent(kind) or (self._time(), make()))",
        "self.reading(lambda: (self._time(), make()))",
        _METRICS,
    ),
    Mutant(
        "metrics of a minute ago",
        "waltz_trio.metrics",
        "_TEXT_AGE = 1.0",
        "_TEXT_AGE = 60.0",
        _METRICS,
    ),
    Mutant(
        "every look costs a snapshot",
        "waltz_trio.server",
        "if self._snapshot is None or now_ms() - self._snapshot_at >= _RECENT_MS:",
        "if self._snapshot is None or now_ms() - self._snapshot_at >= 0:",
        ("tests/trio/test_server.py",),
    ),
    # ---- views and the application ---------------------------------------------------------------------------------
    Mutant(
        "changes are taken back in the order they were made",
        "waltz_trio.states",
        "        for undo in reversed(self._undo):\n",
        "        for undo in self._undo:\n",
        _STATES,
    ),
    Mutant(
        "an object of the state is not put back",
        "waltz_trio.states",
        "            copied = copy.deepcopy(value)\n",
        "            copied = value\n",
        _STATES,
    ),
    Mutant(
        "what cannot be copied counts as put back",
        "waltz_trio.states",
        "            self._whole = False\n",
        "            self._whole = True\n",
        (*_STATES, *_VIEWS),
    ),
    Mutant(
        "what decides gets a state that it can change",
        "waltz_trio.views",
        "return decide(wrapped(self.state, None), *args), self.marks[partition]",
        "return decide(wrapped(self.state, Journal()), *args), self.marks[partition]",
        _VIEWS,
    ),
    Mutant(
        "a failed transaction takes back the one before it",
        "waltz_trio.views",
        "            raise\n        journal.forget()\n",
        "            raise\n",
        _VIEWS,
    ),
    Mutant(
        "a half changed state is used again",
        "waltz_trio.views",
        "                self._torn = failed\n",
        "                self._torn = None\n",
        _VIEWS,
    ),
    Mutant(
        "what decides may write into the database",
        "waltz_trio.sqlite_view",
        '                session.connection.execute(f"PRAGMA query_only = ON {_OURS}")\n',
        "                pass\n",
        _VIEWS,
    ),
    Mutant(
        "the application ends our transaction",
        "waltz_trio.sqlite_view",
        "denied = action in _TRANSACTION_CONTROL or (",
        "denied = (",
        _VIEWS,
    ),
    Mutant(
        "another version commits into the database",
        "waltz_trio.sql_view",
        "            self._check_identity(cursor, partition, expected)\n",
        "",
        _VIEWS,
    ),
    Mutant(
        "what another process applied is applied again",
        "waltz_trio.sql_view",
        "if transaction.id > expected and transaction.header != MARKER_HEADER:",
        "if transaction.header != MARKER_HEADER:",
        _VIEWS,
    ),
    Mutant(
        "a view goes on in a file that was deleted",
        "waltz_trio.sqlite_view",
        "if self._file is not None and _file_at(self.path) != self._file:",
        "if False:",
        _VIEWS,
    ),
    Mutant(
        "a database that was put back is read",
        "waltz_trio.sql_view",
        "            if mark is None or mark < expected:\n                raise",
        "            if mark is None:\n                raise",
        _VIEWS,
    ),
    Mutant(
        "a transaction that the database gave up counts as committed",
        "waltz_trio.sql_view",
        "            self._check_marks(cursor, {partition: batch.last_id})\n",
        "",
        _DATABASES,
    ),
    Mutant(
        "an older version commits while it is being replaced",
        "waltz_trio.sql_view",
        "            self._check_identity(cursor, partition, expected)\n",
        "",
        _DATABASES,
    ),
    Mutant(
        "a commit that PostgreSQL turned into a rollback is believed",
        "waltz_trio.postgres_view",
        "        if self._driver.in_error(cursor):\n",
        "        if False:\n",
        _DATABASES,
    ),
    Mutant(
        "statements of MySQL that end a transaction are let through",
        "waltz_trio.mysql_session",
        "        if self.guarded:\n            self._check(sql)\n",
        "",
        _DATABASES,
    ),
    Mutant(
        "a rebuild that was cut off counts as done",
        "waltz_trio.sql_view",
        "            self._write_identity(cursor, replaced, -self.version)\n",
        "            self._write_identity(cursor, replaced, self.version)\n",
        _DATABASES,
    ),
    Mutant(
        "a slot is lost with an error of decide",
        "waltz_trio.application",
        "            self._tell(part, *map(Withdrawn, left))\n",
        "            pass\n",
        _APPLICATION,
    ),
    Mutant(
        "the good half of a batch is thrown away",
        "waltz_trio.application",
        "each.id <= last_id))",
        "each.id < last_id))",
        _APPLICATION,
    ),
    Mutant(
        "a fresh read is any read",
        "waltz_trio.application",
        "mark = await self._reach(part, None) if fresh else -1",
        "mark = -1",
        _APPLICATION,
    ),
    # ---- archive, audit and sink -------------------------------------------------------------------------------------
    Mutant(
        "an archive leads out of itself",
        "waltz_spark.objects",
        "if not same or os.path.commonpath([real, root]) != root:",
        "if not same:",
        _ARCHIVE,
    ),
    Mutant(
        "an archive of pipes and devices is opened",
        "waltz_spark.objects",
        "        if not stat.S_ISREG(opened.st_mode):\n",
        "        if False:\n",
        _ARCHIVE,
    ),
    Mutant(
        "a commit names any file",
        "waltz_spark.manifest",
        "if one.path != file_path(one.partition, one.first_id, one.end_id):",
        "if not one.path:",
        _ARCHIVE,
    ),
    Mutant(
        "files of a checkpoint are believed",
        "waltz_spark.manifest",
        "            check_links(attrs.evolve(state, files=()), state.files)\n",
        "",
        _ARCHIVE,
    ),
    Mutant(
        "a break of the chain is overlooked",
        "waltz_spark.manifest",
        "        if link != one.chain:\n",
        "        if not one.chain:\n",
        _ARCHIVE,
    ),
    Mutant(
        "little is decoded into much",
        "waltz_spark.archived",
        'if chunk.path_in_schema != "data" or not _PLAIN.issuperset(chunk.encodings):',
        'if chunk.path_in_schema != "data":',
        _ARCHIVE,
    ),
    Mutant(
        "a file of another size is decoded",
        "waltz_spark.archived",
        "        if size != place.file_size:\n",
        "        if size < 0:\n",
        _ARCHIVE,
    ),
    Mutant(
        "unproven passes",
        "waltz_spark.coverage",
        "return FAILED if FAILED in found else UNPROVEN if UNPROVEN in found else PASSED",
        "return FAILED if FAILED in found else PASSED",
        _AUDIT,
    ),
    Mutant(
        "what lies behind the mark of a directory is not known",
        "waltz_spark.audit",
        "        ends += [part.end + part.behind for part in parts]\n",
        "        pass\n",
        _AUDIT,
    ),
    Mutant(
        "a scan leaves out what it does not believe",
        "waltz_spark.scan",
        "FAILED if self.problems else UNPROVEN if self.left_out or not self.held else PASSED",
        "FAILED if self.problems else PASSED",
        ("tests/spark/test_cli.py", "tests/spark/test_processes.py"),
    ),
    Mutant(
        "a sink that was begun again remembers the old one",
        "waltz_spark.sink_state",
        'key = self._store.root, begun["sink"] if begun is not None else "", name',
        'key = self._store.root, "", name',
        _SINK,
    ),
    Mutant(
        "the marks of an idle partition are forgotten",
        "waltz_spark.sink_state",
        "marks = [max(mark, last_ids.get(at, mark)) for at, mark in enumerate(self.base(batch))]",
        "marks = [last_ids.get(at, -1) for at, mark in enumerate(self.base(batch))]",
        _SINK,
    ),
)
"""A survivor names a missing test."""
