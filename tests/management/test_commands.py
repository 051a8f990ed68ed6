"""manage.py commands: the portal's own machine needs no login, and a refusal is a sentence."""

from __future__ import annotations

import io
import json
import stat
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from pool.core import wire
from pool.core.period import Period
from pool.core.standing import borrowed_now
from pool.models import Gpu, JoinCode, Node, Pool, QuotaLine, QuotaRequest, Reservation, Team, Token, User
from pool.queries import clock, consistency, fleets, standing, teams
from pool.services import inventory, tokens
from tests.cast import Cast, SimNode, enrol_node

pytestmark = pytest.mark.django_db


def run(name: str, *arguments: str, typed: str = "", monkeypatch: pytest.MonkeyPatch | None = None) -> str:
    if monkeypatch is not None:
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    out = io.StringIO()
    call_command(name, *arguments, stdout=out)
    return out.getvalue().strip()


def test_a_portal_is_set_up_from_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    run("pool_make", "lab", "--zone", "Asia/Shanghai")
    run("pool_make", "lab", "--unless-there")
    run("team_make", "robots")
    run("team_make", "robots-night", "--parent", "robots")
    run("user_make", "nina", "--role", "admin", typed="right-horse\n", monkeypatch=monkeypatch)
    run("user_make", "olaf", "--team", "robots:lead", typed="right-horse\n", monkeypatch=monkeypatch)
    run("user_make", "ci", "--service", "--team", "robots")
    run("quota_set", "robots", "lab", "--cap", "2.5", "--guaranteed", "1")
    olaf = User.objects.get(username="olaf")
    assert olaf.check_password("right-horse")
    assert set(teams.reach(olaf)) == set(Team.objects.values_list("pk", flat=True))
    assert User.objects.get(username="nina").roles == ["admin"]
    assert not User.objects.get(username="ci").has_usable_password()
    line = QuotaLine.objects.get()
    assert (line.guaranteed_milli, line.cap_milli, line.pool) == (1000, 2500, Pool.objects.get())


def test_what_stands_beside_a_line_is_set_and_taken_away(cast: Cast) -> None:
    options = ("--lend", "1", "--budget", "500", "--longest", "12", "--kind", "mig", "--unit", "gpu")
    run("quota_set", "vision", "main", "--cap", "4", "--guaranteed", "2", *options)
    line = QuotaLine.objects.get(team=cast.vision)
    assert (line.lend_milli, line.budget_milli_hours, line.longest_minutes) == (1000, 500_000, 720)
    assert (line.kinds, line.unit) == (["mig"], "gpu")
    run("quota_set", "vision", "main", "--cap", "4", "--guaranteed", "2", "--budget", "none")
    line.refresh_from_db()
    assert (line.lend_milli, line.budget_milli_hours) == (1000, None)


@pytest.mark.django_db(transaction=True)
def test_a_check_says_that_nothing_differs_or_lists_what_does(cast: Cast) -> None:
    QuotaLine.objects.update(guaranteed_milli=0)
    assert run("pool_check") == "0 differ, 0 are kept from before a limit was changed."
    assert run("pool_check", "main", "--json") == "[]"
    with pytest.raises(CommandError, match="There is no pool"):
        run("pool_check", "nowhere")
    enrol_node(cast.main)
    Gpu.objects.update(wanted={"held": [{"allocation": "x", "start": 0, "size": 1}]})
    out = io.StringIO()
    with pytest.raises(SystemExit) as left:
        call_command("pool_check", "--json", stdout=out)
    assert left.value.code == 1
    (found,) = (one for one in json.loads(out.getvalue()) if not one["kept"])
    assert (found["rule"], found["subject"]) == ("layout_differs", "node-1/0")
    with pytest.raises(SystemExit):
        run("pool_check")


def test_a_token_is_printed_once(cast: Cast) -> None:
    raw = run("token_make", "milo", "--team", "vision", "--days", "1")
    token = tokens.authenticate(raw, clock.real_now())
    assert token is not None
    assert token.user == cast.milo


def test_a_join_code_lets_its_node_in(cast: Cast, settings: Any) -> None:
    settings.NODE_BROKER_URL = ""
    code = run("join_code", "main", "dgx-01")
    ask = wire.JoinAsk(code=code, node="dgx-01", machine_id="machine-1", agent="0.1.0")
    assert inventory.enrol(ask=ask, now=clock.real_now()).node == "dgx-01"


def test_gpus_are_shown_and_then_managed(cast: Cast) -> None:
    enrol_node(cast.main, count=4, managed=False)
    assert run("gpu_set", "node-1", "--gpu", "0").endswith(
        "managing would create 0, destroy 0; 0 foreign instances stay"
    )
    run("gpu_set", "node-1", "--gpu", "0-1,3", "--use", "mig", "--manage")
    rows = list(Gpu.objects.order_by("index").values_list("use", "managed"))
    assert rows == [("mig", True), ("mig", True), ("whole", False), ("mig", True)]
    run("gpu_set", "node-1", "--gpu", "3", "--observe")
    assert not Gpu.objects.get(index=3).managed


def test_everything_is_frozen_and_thawed(cast: Cast) -> None:
    run("freeze", "everything")
    assert Pool.objects.get().frozen
    run("freeze", "everything", "--thaw")
    assert not Pool.objects.get().frozen


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["pool_make", "main"], "taken"),
        (["team_make", "Bad Name"], "bad_characters"),
        (["team_make", "x", "--parent", "none"], "no team none"),
        (["token_make", "nobody"], "no user nobody"),
        (["token_make", "milo", "--days", "0"], "too_small"),
        (["quota_set", "vision", "none", "--cap", "1"], "no pool none"),
        (["quota_set", "vision", "main", "--cap", "many"], "no number"),
        (["quota_set", "vision", "main", "--cap", "nan"], "no number"),
        (["quota_set", "vision", "main", "--cap", "1", "--weight", "none"], "no number"),
        (["quota_set", "vision", "main", "--cap", "1", "--guaranteed", "2"], "too_large"),
        (["join_code", "none", "dgx-01"], "not_found"),
        (["gpu_set", "none"], "No GPU of none"),
        (["gpu_set", "node-1", "--gpu", "a-b"], "no indices"),
        (["gpu_set", "node-1", "--manage", "--observe"], "Choose"),
        (["freeze", "node"], "Name what"),
        (["freeze", "everything", "main"], "Name what"),
        (["freeze", "node", "none"], "not_found"),
        (["user_make", "x", "--service", "--team", "vision:king"], "the role must be"),
    ],
)
def test_a_refusal_is_a_sentence(cast: Cast, node: SimNode, words: list[str], told: str) -> None:
    with pytest.raises(CommandError, match=told):
        run(*words)


def test_a_refusal_says_what_is_wrong_and_what_next(cast: Cast) -> None:
    with pytest.raises(CommandError) as refused:
        run("freeze", "node", "none")
    said = "Nothing by that name exists, or it is not yours to see. Check the name or the id."
    assert str(refused.value) == f"Refused (not_found): {said}"
    with pytest.raises(CommandError) as refused:
        run("pool_make", "main")
    said = "main exists already. Look again and choose anew."
    assert str(refused.value) == f'Refused (taken): {said}\n{{"name": "main"}}'


def test_a_short_password_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CommandError, match="8 characters"):
        run("user_make", "x", typed="short\n", monkeypatch=monkeypatch)
    assert not User.objects.exists()


# --- The demo ---------------------------------------------------------------------


def seed(folder: Path) -> dict[str, Any]:
    run("demo_seed", "--out", str(folder / "seed.json"))
    read: dict[str, Any] = json.loads((folder / "seed.json").read_text())
    return read


def test_the_demo_has_its_people_quota_tokens_and_codes(tmp_path: Path) -> None:
    made = seed(tmp_path)
    assert stat.S_IMODE((tmp_path / "seed.json").stat().st_mode) == 0o600
    for login in made["logins"]:
        assert User.objects.get(username=login["username"]).check_password(login["password"])
    roles = {login["username"]: login["role"] for login in made["logins"]}
    assert (roles["lead"], roles["stranger"], roles["approver"]) == (
        "lead of vision",
        "lead of speech",
        "approver",
    )
    lines = QuotaLine.objects.order_by("team__name").values_list(
        "team__name", "guaranteed_milli", "cap_milli"
    )
    assert list(lines) == [("research", 0, 8000), ("speech", 4000, 8000), ("vision", 8000, 16000)]
    for name in ("lead", "admin"):
        token = tokens.authenticate(made["tokens"][name], clock.real_now())
        assert token is not None
        assert token.user.username == name
    assert set(made["join_codes"]) == {"dgx-h100-01", "dgx-a100-01", "gb200-01", "gb200-02", "rtx-01"}


def test_a_second_start_keeps_everything(tmp_path: Path) -> None:
    first = seed(tmp_path)
    QuotaLine.objects.filter(team__name="vision").update(cap_milli=12_000)
    second = seed(tmp_path)
    assert (second["logins"], second["tokens"]) == (first["logins"], first["tokens"])
    assert (User.objects.count(), Team.objects.count(), Token.objects.count()) == (6, 3, 2)
    assert QuotaLine.objects.get(team__name="vision").cap_milli == 12_000
    assert JoinCode.objects.count() == 5
    assert QuotaRequest.objects.count() == 1


def test_in_the_demo_somebody_borrows_somebody_waits_and_somebody_asks_for_more(tmp_path: Path) -> None:
    seed(tmp_path)
    for name, model, count in DEMO:
        enrol_node(Pool.objects.get(), name, model, count, managed=False)
    for _ in range(2):
        run("demo_nodes", "--timeout", "0")
        rows = Reservation.objects.order_by("created_at", "pk")
        assert [(row.team.name, row.state, row.charge_milli) for row in rows] == [
            ("research", "starting", 3000),
            ("research", "waiting", 0),
        ]
    pool = Pool.objects.get()
    now = clock.now()
    whole = fleets.current(pool.pk)
    stand = standing.of(pool.pk, whole, Period(now, now + timedelta(hours=1)))
    assert sum(borrowed_now(stand, now).values()) == 3000
    assert QuotaRequest.objects.get().state == "submitted"
    assert [one for one in consistency.differences(now) if not one.kept] == []


@pytest.mark.parametrize("lost", ["", "not json", "[]"])
def test_a_lost_file_of_secrets_is_made_anew(tmp_path: Path, lost: str) -> None:
    first = seed(tmp_path)
    (tmp_path / "seed.json").write_text(lost)
    second = seed(tmp_path)
    for login in second["logins"]:
        assert User.objects.get(username=login["username"]).check_password(login["password"])
    assert second["tokens"] != first["tokens"]


DEMO = (
    ("dgx-h100-01", "H100-80GB", 8),
    ("dgx-a100-01", "A100-40GB", 8),
    ("gb200-01", "GB200-186GB", 4),
    ("gb200-02", "GB200-186GB", 4),
    ("rtx-01", "RTX-PRO-6000-96GB", 2),
)


def test_the_demos_gpus_are_managed_once_all_have_reported(cast: Cast) -> None:
    for name, model, count in DEMO:
        enrol_node(cast.main, name, model, count, managed=False)
    run("demo_nodes", "--timeout", "0")
    whole = Gpu.objects.filter(managed=True, use="whole").order_by("node__name", "index")
    assert [str(gpu) for gpu in whole] == [
        *(f"dgx-h100-01/{n}" for n in range(4, 8)),
        *(f"gb200-01/{n}" for n in range(4)),
    ]
    assert Gpu.objects.filter(managed=True, use="mig").count() == 18
    Gpu.objects.filter(node__name="rtx-01").update(managed=False)
    run("demo_nodes", "--timeout", "0")
    assert Gpu.objects.filter(managed=True).count() == 24


def test_one_gpu_of_the_demo_is_given_in_shares_where_its_node_can(cast: Cast) -> None:
    for name, model, count in DEMO:
        node = enrol_node(cast.main, name, model, count, managed=False)
        node.send(node.report(sharing=("mps", "timeslice")))
    run("demo_nodes", "--timeout", "0")
    shared = Gpu.objects.get(managed=True, use="share")
    assert (str(shared), shared.sharing) == ("rtx-01/1", "mps")


def test_a_node_of_the_demo_that_says_nothing_is_named(cast: Cast) -> None:
    for name, model, count in DEMO[1:]:
        enrol_node(cast.main, name, model, count, managed=False)
    with pytest.raises(CommandError, match="dgx-h100-01"):
        run("demo_nodes", "--timeout", "0")
    assert Node.objects.count() == 4
    assert not Gpu.objects.filter(managed=True).exists()


def test_a_pools_policy_is_shown_and_set(cast: Cast) -> None:
    assert "may_kill             no" in run("pool_set", "main")
    told = run("pool_set", "main", "--may-kill", "yes", "--grace-seconds", "30", "--foreign", "look")
    assert "may_kill             yes" in told
    pool = Pool.objects.get()
    assert (pool.may_kill, pool.grace_seconds, pool.foreign) == (True, 30, "look")
    with pytest.raises(CommandError, match="invalid"):
        run("pool_set", "main", "--most-shares", "0")
    run("pool_set", "main", "--approve-above-milli", "8000", "--notice-seconds", "60")
    pool.refresh_from_db()
    assert (pool.approve_above_milli, pool.notice_seconds) == (8000, 60)
    assert "approve_above_milli  none" in run("pool_set", "main", "--approve-above-milli", "none")


def test_gpus_are_given_out_in_shares_from_the_shell(cast: Cast, node: SimNode) -> None:
    node.send(node.report(sharing=("mps",)))
    assert "share (mps)" in run("gpu_set", "node-1", "--use", "share", "--sharing", "mps")
    with pytest.raises(CommandError, match="not_a_choice"):
        run("gpu_set", "node-1", "--use", "share")


def test_gpus_are_taken_from_the_nodes_other_manager(cast: Cast) -> None:
    node = enrol_node(cast.main, managed=False)
    node.send(node.report(managed_by=("slurmd",)))
    with pytest.raises(CommandError, match="managed_elsewhere"):
        run("gpu_set", "node-1", "--manage")
    assert "managed" in run("gpu_set", "node-1", "--manage", "--excluded")
    assert Gpu.objects.get().excluded
    run("gpu_set", "node-1", "--included")
    row = Gpu.objects.get()
    assert (row.managed, row.excluded) == (True, False)
    with pytest.raises(CommandError, match="Choose"):
        run("gpu_set", "node-1", "--included", "--excluded")


def test_how_a_node_hands_its_slices_out_is_shown_and_set(cast: Cast, node: SimNode) -> None:
    node.send(node.report(access=("advisory", "cdi")))
    assert run("node_set", "node-1") == "node-1  access advisory  (its agent offers: advisory, cdi)"
    assert "access cdi" in run("node_set", "node-1", "--access", "cdi")
    with pytest.raises(CommandError, match="not_a_choice"):
        run("node_set", "node-1", "--access", "unix")
    with pytest.raises(CommandError, match="no node"):
        run("node_set", "elsewhere")


def test_a_retired_node_has_no_way_in_any_more(cast: Cast, node: SimNode, settings: Any) -> None:
    settings.NODE_BROKER_URL = ""
    code = run("join_code", "main", "dgx-01")
    ask = wire.JoinAsk(code=code, node="dgx-01", machine_id="machine-1", agent="0.1.0")
    token = inventory.enrol(ask=ask, now=clock.real_now()).token
    assert tokens.authenticate_node(token) is not None
    assert run("retire", "node", "dgx-01") == "0 GPUs retired."
    assert tokens.authenticate_node(token) is None
    uuid = node.gpus[0].uuid
    assert run("retire", "gpu", uuid) == "1 GPUs retired."
    assert run("retire", "gpu", uuid, "--back") == "1 GPUs are back, only observed."
    with pytest.raises(CommandError, match="so already"):
        run("retire", "gpu", uuid, "--back")


def test_accounts_on_the_nodes_are_set_from_the_shell(cast: Cast) -> None:
    assert run("account_set", "user", "milo", "milo-p") == "milo is milo-p on the nodes."
    assert run("account_set", "team", "vision", "svc") == "vision is svc on the nodes."
    assert run("account_set", "user", "milo", "") == "milo has no account there."
    with pytest.raises(CommandError, match="invalid"):
        run("account_set", "user", "milo", "root")


def test_where_a_node_stands_and_the_tree_of_blocks_are_set(cast: Cast, node: SimNode) -> None:
    assert run("node_set", "node-1", "--block", "rack-1").endswith("block rack-1")
    pool = Node.objects.get().pool.name
    assert "block_sizes          18,36" in run("pool_set", pool, "--block-sizes", "18,36")
    assert "block_sizes          none" in run("pool_set", pool, "--block-sizes", "none")
    with pytest.raises(CommandError):
        run("pool_set", pool, "--block-sizes", "18,20")
