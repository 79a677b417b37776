"""Bugs planted into what archives, frees and reads through; each is found by the tests that name the rule."""

# ruff: noqa: E501  # lines of the code as they stand there

from __future__ import annotations

from tests.mutants.planted import Mutant

_TESTS = ("tests/model/test_archiving.py",)
_KILLS = ("tests/model/test_archive_kills.py",)

ARCHIVING = (
    Mutant(
        "a read that no replica answers is never reported",
        "server.archiving",
        "            if final:\n",
        "            if not final:\n",
        _TESTS,
    ),
    Mutant(
        "records are freed that no archive was compared with",
        "server.archiving",
        "            case ArchiveFailed(reason=reason):\n",
        "            case ArchiveFailed() if session is not None and self.stage is Stage.COMPARE:\n"
        "                self._on_equal(now, session)\n"
        "            case ArchiveFailed(reason=reason):\n",
        _TESTS,
    ),
    Mutant(
        "an archive of another history is believed",
        "server.archiving",
        "        if self.holds.end > mark + 1:\n",
        "        if self.holds.end > mark + 1_000_000:\n",
        _TESTS,
    ),
    Mutant(
        "a file begins behind what is archived",
        "server.archiving",
        "self._begin(now, session, self.holds.end, stop, freeing=False)",
        "self._begin(now, session, min(self.holds.end + 1, stop - 1), stop, freeing=False)",
        _TESTS,
    ),
    Mutant(
        "the newest records are freed too",
        "server.archiving",
        "limit = min(holds.end, mark + 1 - self._policy.keep, session.low_water_mark + 1)",
        "limit = min(holds.end, session.low_water_mark + 1)",
        _TESTS,
    ),
    Mutant(
        "records of the archive are not checked",
        "server.archived_reads",
        "records = sound_part(event.records, asked.first) if",
        "records = event.records if",
        _TESTS,
    ),
    Mutant(
        "a feed that the archive failed is never tried again",
        "server.archived_reads",
        "            self._again_at = self._attempts.pause(now)\n",
        "            pass\n",
        _TESTS,
    ),
    Mutant(
        "an archive that does not answer is waited for without end",
        "server.archive",
        "        if deadline is not None and now >= deadline:\n",
        "        if deadline is not None and now < deadline:\n",
        ("tests/unit/server/test_archive.py",),
    ),
    Mutant(
        "what is read through the archive is not bounded",
        "server.archive",
        "        while self._waiting and self._reading < self.policy.reads_max:\n",
        "        while self._waiting:\n",
        ("tests/unit/server/test_archive.py",),
    ),
    Mutant(
        "what is half as old as it should be is archived",
        "server.archiving",
        "now - samples[0][0] >= self._after:",
        "now - samples[0][0] >= self._after // 2:",
        ("tests/unit/server/test_archiving.py",),
    ),
    Mutant(
        "a file behind a short one ends anywhere",
        "server.archiving",
        "stop = (holds.end // holds.file_records + 1) * holds.file_records",
        "stop = holds.end + holds.file_records",
        (
            "tests/model/test_archiving.py::test_a_file_that_age_has_cut_short_is_followed_by_one_that_ends_where_a_full_one_would",
        ),
    ),
    Mutant(
        "a file is begun that lacks its last record",
        "server.archiving",
        "return stop if stop <= mark + 1 else",
        "return stop if stop <= mark + 2 else",
        ("tests/model/test_archiving.py::test_what_does_not_fill_a_file_is_not_read_and_nothing_is_wrong_meanwhile",),
    ),
    Mutant(
        "the log start is to rise above where the session began",
        "server.archiving",
        "limit = min(holds.end, mark + 1 - self._policy.keep, session.low_water_mark + 1)",
        "limit = min(holds.end, mark + 1 - self._policy.keep)",
        (
            "tests/model/test_archiving.py::test_above_the_mark_at_which_the_store_session_began_nothing_is_freed_and_nothing_is_wrong",
        ),
    ),
    Mutant(
        "a file of the archive grows without end",
        "server.archiving",
        "if self._at < self._stop and self._size < self._policy.file_bytes:",
        "if self._at < self._stop:",
        ("tests/model/test_archiving.py::test_a_file_ends_once_it_holds_so_many_bytes",),
    ),
    Mutant(
        "a partition whose archive failed keeps its turn",
        "server.archiving",
        "        self.holds = self._ticket = self._token = None\n        self._rest()\n",
        "        self.holds = self._ticket = self._token = None\n        self.stage = Stage.IDLE\n",
        (
            "tests/model/test_archiving.py::test_a_partition_whose_archive_failed_leaves_its_turn_to_others_while_it_pauses",
        ),
    ),
    Mutant(
        "an answer to a question of an earlier session is believed",
        "server.archiving",
        "        if event.ticket != self._ticket:\n            return\n",
        "",
        ("tests/model/test_archiving.py::test_an_answer_to_what_an_earlier_store_session_asked_is_not_believed",),
    ),
    Mutant(
        "an archive with a gap before the log is continued",
        "server.archiving",
        "if holds.end < present or holds.first > present:",
        "if holds.end < present:",
        ("tests/model/test_archiving.py::test_an_archive_with_a_gap_before_the_log_start_is_another_archive",),
    ),
    Mutant(
        "the archive's question outlives the store session",
        "server.archiving",
        "        if self.stage is not Stage.IDLE:\n            self._void()\n",
        "        pass\n",
        ("tests/model/test_archiving.py::test_an_answer_to_what_an_earlier_store_session_asked_is_not_believed",),
    ),
    Mutant(
        "a trouble of the archive is shown for ever",
        "server.archiving",
        '        self.trouble = ""\n        if self._attempts.succeeded():\n            self._out.put(Report(Level.INFO, f"{self._where}: archiving works again',
        '        if self._attempts.succeeded():\n            self._out.put(Report(Level.INFO, f"{self._where}: archiving works again',
        (
            "tests/model/test_archiving.py::test_while_the_archive_is_away_nothing_is_freed_appends_go_on_and_readers_below_wait",
        ),
    ),
    Mutant(
        "an archive that is away is asked without a pause",
        "server.archiving",
        "        self._again_at = self._attempts.pause(now)\n",
        "        self._again_at = now\n",
        (
            "tests/model/test_archiving.py::test_while_the_archive_is_away_nothing_is_freed_appends_go_on_and_readers_below_wait",
        ),
    ),
    Mutant(
        "only one of those who waited for the archive reads on",
        "server.archived_reads",
        "again, self._again, self._again_at = self._again, [], None\n            for read in again:",
        "again, self._again, self._again_at = self._again, [], None\n            for read in again[:1]:",
        (
            "tests/model/test_archiving.py::test_while_the_archive_is_away_nothing_is_freed_appends_go_on_and_readers_below_wait",
        ),
    ),
    Mutant(
        "a feed below the log start fails with the archive",
        "server.archived_reads",
        "        if not again:\n            self.notes.put(ReadFailed",
        "        if True:\n            self.notes.put(ReadFailed",
        (
            "tests/model/test_archiving.py::test_while_the_archive_is_away_nothing_is_freed_appends_go_on_and_readers_below_wait",
        ),
    ),
    Mutant(
        "a partition that rests is given a turn",
        "server.archive",
        "        self._wanting.pop(partition_id, None)\n",
        "",
        ("tests/unit/server/test_archive.py",),
    ),
    Mutant(
        "reads for a partition that left count for ever",
        "server.archive",
        "if owed.read is not None:\n            self._reading -= 1",
        "if owed.read is not None and owed.partition_id >= 0:\n            self._reading -= 1",
        ("tests/unit/server/test_archive.py",),
    ),
    Mutant(
        "a comparison goes on with what an earlier one has read",
        "waltz_spark.archive.agent",
        "if cursor is None or question.anew or cursor.at",
        "if cursor is None or cursor.at",
        ("tests/spark/test_archive_agent.py",),
    ),
    Mutant(
        "a comparison does not say that it begins",
        "server.archiving",
        "            anew = first == file_first\n",
        "            anew = False\n",
        ("tests/model/test_archiving.py::test_a_damaged_archive_frees_nothing_and_gives_nothing_wrong",),
    ),
    Mutant(
        "only the first file of a comparison is compared",
        "waltz_spark.archive.agent",
        "            low += len(held)\n",
        "            low += len(held)\n            cursor.at = end\n",
        ("tests/spark/test_archive_agent.py",),
    ),
    Mutant(
        "the archive of another cluster is written to",
        "waltz_spark.archive.agent",
        "!= (look.cluster_key, look.partition_count):",
        "!= (look.cluster_key, state.partition_count):",
        ("tests/spark/test_archive_agent.py",),
    ),
    Mutant(
        "a file of the archive has a gap",
        "waltz_spark.archive.agent",
        "(file.first, file.next_id) != (first, next_id)",
        "file.first != first",
        ("tests/spark/test_archive_agent.py",),
    ),
    Mutant(
        "a file of the archive that failed is gone on with",
        "waltz_spark.archive.agent",
        "        except BaseException:\n            self.drop(question.partition_id)\n            raise\n",
        "        except BaseException:\n            raise\n",
        ("tests/spark/test_archive_agent.py",),
    ),
    Mutant(
        "the archive gives one record too many",
        "waltz_spark.archive.agent",
        "min(block.count, low + question.count)",
        "min(block.count, low + question.count + 1)",
        ("tests/spark/test_archive_agent.py",),
    ),
    Mutant(
        "a commit to the archive has its name before it is written",
        "waltz_spark.base.objects",
        "        try:\n"
        "            fd = durable.open_file(Path(scratch), os.O_WRONLY)\n"
        "            try:\n"
        "                durable.write_all(fd, data)\n"
        "            finally:\n"
        "                durable.close(fd)\n"
        "        except BaseException:  # a full disk: what is there already must not make it fuller at every attempt\n"
        "            durable.unlink(Path(scratch))\n"
        "            raise\n"
        "        return self.publish(scratch, name)\n",
        "        if os.path.lexists(self._root / name):\n"
        "            return False\n"
        "        durable.link(Path(scratch), self._root / name)\n"
        "        fd = durable.open_file(Path(scratch), os.O_WRONLY)\n"
        "        durable.write_all(fd, data)\n"
        "        durable.close(fd)\n"
        "        durable.unlink(Path(scratch))\n"
        "        return True\n",
        _KILLS,
    ),
    Mutant(
        "a file that an archive left behind when it was killed is in the way for ever",
        "waltz_spark.archive.archive",
        "        _check_written(task, task.root, task.path, digest)\n",
        '        raise ArchiveError(f"{task.path} is there already")\n',
        _KILLS,
    ),
    Mutant(
        "an archive that dies while it compares has found everything equal",
        "server.archiving",
        "            case ArchiveFailed(reason=reason):\n",
        "            case ArchiveFailed() if session is not None and self.stage is Stage.COMPARE:\n"
        "                self._on_equal(now, session)\n"
        "            case ArchiveFailed(reason=reason):\n",
        _KILLS,
    ),
    Mutant(
        "an archive that is just being started cannot be given up",
        "waltz_trio.node.archive_agent",
        "        if self._given_up:\n",
        "        if False:\n",
        ("tests/spark/test_archive_process.py",),
    ),
    Mutant(
        "an archive that is to begin anew goes on",
        "waltz_trio.node.archive_agent",
        "            self.abandon()\n            return\n",
        "            return\n",
        ("tests/spark/test_archive_process.py",),
    ),
    Mutant(
        "an archive is asked again what has failed",
        "waltz_trio.node.archive_agent",
        "            self._asked.clear()\n            self._unsent.clear()\n",
        "            self._asked.clear()\n",
        ("tests/spark/test_archive_process.py",),
    ),
    Mutant(
        "records that an archive has taken are kept",
        "waltz_trio.node.archive_agent",
        "                    self._asked.pop(answer.ticket, None)\n",
        "                    pass\n",
        ("tests/spark/test_archive_process.py",),
    ),
)
