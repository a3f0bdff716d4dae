"""Every kind of edit answers every question; what is not known is refused, and never trained as something else."""

import json
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner
from tests import tiny

from trisect.cli import main
from trisect.core.edits import Edit, check_site, kind_of, kinds, make_edit, read_edit, register
from trisect.core.errors import SpecError
from trisect.core.methods import Control, Probe, canonical_variant
from trisect.core.schema import read
from trisect.core.site import Site
from trisect.core.spec import Run, read_experiment, to_json_data
from trisect.experiments.study.plan import designs, evaluations, fleets, join_ledger, make_plan, token_seconds
from trisect.experiments.study.settings import DesignSource
from trisect.lab.folder import Folder
from trisect.lm.edits import EDITS, AttackEdit, FreezeEdit, NarrowEdit
from trisect.lm.fleet import Member
from trisect.lm.train import Trainer, parameters_of
from trisect.lm.training_edit import TrainingEdit

CORPUS = tiny.corpus()
BASE = next(r for r in tiny.runs() if r.edit is None)
Q = Site.parse("q@1")
EVERY = (
    AttackEdit(Q, "pos", 0.5, "control+bounded+site"),
    FreezeEdit(Q),
    make_edit("tie", Site.parse("q+k@1")),
    make_edit("identity", Q),
    NarrowEdit(Site.parse("q+k+v@2"), 2),
)


@dataclass(frozen=True)
class Melt(Edit):
    """States all that a statement needs, and says nothing of how it is trained."""

    kind: ClassVar[str] = "melt"
    title: ClassVar[str] = "Melting"
    has_own_figures: ClassVar[bool] = False

    @classmethod
    def check_site(cls, site: Site) -> Site:
        return site

    @property
    def column(self) -> None:
        return

    def token_seconds(self, width: int) -> float:
        return 0.0


def test_an_edit_that_lm_does_not_know_is_refused_before_anything_is_trained():
    for make in (
        lambda: Trainer([BASE, replace(BASE, edit=Melt(Q))], CORPUS),
        lambda: parameters_of(BASE.model, 100, Melt(Q)),
    ):
        with pytest.raises(SpecError) as caught:
            make()
        assert caught.value.problem == "The edit melt at q@1 cannot be trained."
        assert caught.value.reason == "Melt states what is done and says nothing of how."
        assert "trisect/lm/edits" in caught.value.todo


def test_a_statement_of_a_kind_that_is_not_registered_is_refused_by_name():
    stored: Any = {**to_json_data(BASE), "edit": {"kind": "melt", "site": "q@1", "label": None, "strength": None}}
    for make in (
        lambda: read(Run, stored, "the run"),
        lambda: read_experiment({"edits": [{"kind": "melt", "site": "q@1"}]}, "f.json"),
        lambda: make_edit("melt", Q),
        lambda: check_site(Q, "melt"),
        lambda: kind_of("melt"),
    ):
        with pytest.raises(SpecError) as caught:
            make()
        assert caught.value.problem.endswith("Unknown edit 'melt'.")
        assert caught.value.reason == "Edits are attack, freeze, tie, identity, narrow."
    assert kinds() == tuple(kind.kind for kind in EDITS)


def test_a_kind_that_leaves_a_question_open_cannot_be_made_or_registered():
    @dataclass(frozen=True)
    class Half(TrainingEdit):
        kind: ClassVar[str] = "half"
        title: ClassVar[str] = "Half"
        has_own_figures: ClassVar[bool] = False

        def prepare(self, member: Member) -> None: ...

    with pytest.raises(TypeError, match="abstract"):
        Half(Q)  # pyright: ignore[reportAbstractUsage]
    with pytest.raises(
        AssertionError, match=r"Half does not define \['check_site', 'column', 'objectives', 'token_seconds'\]"
    ):
        register([Half])
    assert "half" not in kinds()


def test_two_kinds_of_one_name_are_refused():
    @dataclass(frozen=True)
    class Other(Melt):
        kind: ClassVar[str] = "freeze"

    with pytest.raises(AssertionError, match="two kinds of edits are called 'freeze'"):
        register([Other])
    assert kind_of("freeze") is FreezeEdit


@pytest.mark.parametrize("edit", EVERY, ids=lambda e: e.kind)
def test_every_kind_is_read_back_from_its_data_and_costs_no_less_than_the_baseline(edit):
    assert {e.kind for e in EVERY} == set(kinds())
    data = json.loads(json.dumps(edit.data()))
    assert read_edit(data) == edit
    assert {"kind", "site", "label", "strength"} <= set(data)
    assert str(edit.site) in edit.slug
    run = replace(BASE, edit=edit)
    assert token_seconds(run, 100, True) >= token_seconds(BASE, 100, True)
    assert token_seconds(run, 100, False) == token_seconds(BASE, 100, False)
    assert 0 < parameters_of(BASE.model, 100, edit) <= parameters_of(BASE.model, 100)


def test_one_label_a_fleet_and_probes_of_what_is_attacked_alone():
    runs = [BASE, *(replace(BASE, edit=edit) for edit in EVERY), replace(BASE, edit=AttackEdit(Q, "dep", 1.0))]
    found = [{r.edit.column if r.edit else None for r in fleet} for fleet in fleets(runs)]
    assert sorted(found, key=str) == [{"dep"}, {"pos"}, {None}]
    edits = tuple(run.edit for run in runs if run.edit)
    study = replace(tiny.EXPERIMENT, attack=None, freeze=None, probe=Probe(None, ("pos", "dep")), edits=edits)
    probed: dict[str | None, set[str]] = {}
    for task, (_, run) in evaluations([study], "text").items():
        if run.edit:
            probed.setdefault(run.edit.column, set()).add(task.label)
    assert probed == {"pos": {"pos"}, "dep": {"dep"}}


def test_variants_have_one_spelling():
    spelt = {
        "plain": "plain",
        "site+bounded": "bounded+site",
        "site+control+bounded": "control+bounded+site",
        "bounded": "bounded",
        "bounded+bounded": None,
        "plain+site": None,
        "": None,
        "bounded+": None,
        "gentle": None,
    }
    assert {text: canonical_variant(text) for text in spelt} == spelt
    one, two = AttackEdit(Q, "pos", 1.0, "site+bounded"), AttackEdit(Q, "pos", 1.0, "bounded+site")
    assert one == two
    assert replace(BASE, edit=one).id == replace(BASE, edit=two).id
    assert replace(BASE, edit=one).id.startswith("attack-bounded+site-pos-q@1-s1-")
    assert (one.aim, one.reach, one.uses_control) == ("prior", "site", False)
    assert Control(variants=("site+bounded",)).variants == ("bounded+site",)
    with pytest.raises(SpecError, match="variants are bounded\\+site, bounded\\+site"):
        Control(variants=("site+bounded", "bounded+site"))
    with pytest.raises(SpecError, match=r"Unknown control 'plain\+site'"):
        Control(variants=("plain+site",))


ASKED = {
    **{key: to_json_data(tiny.EXPERIMENT)[key] for key in ("name", "text", "model", "training")},
    "seeds": [1],
    "attack": {"sites": ["q@1"], "labels": ["pos"], "epochs": 1},
    "rewind": None,
    "freeze": None,
    "control": {"sites": ["q@1"], "labels": ["pos"], "variants": ["site+bounded"]},
    "edits": [
        {"kind": "narrow", "site": "q+k+v@all", "width": 2},
        {"kind": "attack", "site": "k@2", "label": "dep", "strength": 0.3, "variant": "bounded+site"},
        {"kind": "attack", "site": "q@1", "label": "pos", "strength": 1},
    ],
}
SLUGS = [
    "baseline-s1",
    "attack-pos-q@1-s1",
    "attack-bounded+site-pos-q@1-s1",
    "narrow2-q+k+v@1-2-s1",
    "attack-bounded+site-dep-k@2-x0.3-s1",
]


def test_an_experiments_file_asks_for_combined_controls_and_for_edits_of_any_kind(tmp_path):
    path = tmp_path / "asked.json"
    path.write_text(json.dumps(ASKED))
    said = CliRunner().invoke(main, ["plan", str(path), "--runs"])
    assert said.exit_code == 0, said.output
    assert [line.rpartition("-")[0] for line in said.stdout.splitlines()[: len(SLUGS)]] == SLUGS
    said = CliRunner().invoke(main, ["plan", str(path), "--only", "edits", "--sites", "k@1", "--json"])
    assert said.exit_code == 2
    assert "narrow at 'k@1' is not possible" in said.output
    (asked,) = designs(DesignSource(path, only=("edits",)))
    assert (asked.attack, asked.control, len(asked.edits)) == (None, None, 3)
    assert read_experiment(to_json_data(asked), "again") == asked
    epochs = {run.id.rpartition("-")[0]: run.training.epochs for run in make_plan(*designs(DesignSource(path))).runs}
    assert [epochs[slug] for slug in SLUGS] == [2, 1, 1, 2, 1]
    missing = replace(asked, edits=(AttackEdit(Q, "mood", 1.0),))
    with pytest.raises(Exception, match="mood"):
        make_plan(missing)


def test_statements_without_edits_of_their_own_say_what_they_said_before():
    assert "edits" not in to_json_data(tiny.EXPERIMENT)
    assert read_experiment({**to_json_data(tiny.EXPERIMENT), "edits": []}, "f") == tiny.EXPERIMENT
    with pytest.raises(SpecError, match="edits in f is 3"):
        read_experiment({"edits": 3}, "f")
    with pytest.raises(SpecError, match=r"In f: An edit is \{'kind': 'freeze'\}"):
        read_experiment({"edits": [{"kind": "freeze"}]}, "f")
    with pytest.raises(SpecError, match=r"the edit narrow at q\+k\+v@1: width is 'thin'"):
        read_experiment({"edits": [{"kind": "narrow", "site": "q+k+v@1", "width": "thin"}]}, "f")
    with pytest.raises(SpecError, match="has depth=3"):
        read_experiment({"edits": [{"kind": "freeze", "site": "q@1", "depth": 3}]}, "f")


def test_edits_are_added_to_a_study_that_is_there(tmp_path):
    first = replace(tiny.EXPERIMENT, seeds=(1,), attack=None, rewind=None, freeze=None)
    more = replace(first, edits=(FreezeEdit(Q), NarrowEdit(Site.parse("q+k+v@1"), 2)))
    folder = Folder(tmp_path / "study")
    folder.path.mkdir()
    assert not join_ledger(folder, [first], CORPUS.fingerprint).experiment.edits
    join_ledger(folder, [replace(first, edits=more.edits[:1])], CORPUS.fingerprint)
    ledger = join_ledger(folder, [more], CORPUS.fingerprint)
    assert [one.kind for one in ledger.experiment.edits] == ["freeze", "narrow"]
    assert [run.rpartition("-s")[0] for run in ledger.runs] == ["baseline", "freeze-q@1", "narrow2-q+k+v@1"]
    assert join_ledger(folder, [first], CORPUS.fingerprint) == ledger
