"""Documents agree with the tree and with each other: links, code map, the README's claims."""

import pydoc
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in (ROOT, ROOT / "docs", ROOT / "bench", ROOT / "tools", ROOT / "examples")
    for path in (folder.rglob if folder.name in ("docs", "examples") else folder.glob)("*.md")
)
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
BENCHMARKS = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")


def prose(text):
    """A document without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(path):
    """Anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", prose(path.read_text(encoding="utf-8")), re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", head).lower() for head in heads]
    return {re.sub(r"[^\w\- ]", "", head).strip().replace(" ", "-") for head in plain}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_to_files_and_headings(document):
    path = ROOT / document
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(path.read_text(encoding="utf-8"))):
        if link.startswith(("http:", "https:")):
            continue
        file, _, anchor = link.partition("#")
        target = path if not file else path.parent / file
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("document", DOCUMENTS)
def test_plain_terms_are_used(document):
    """Subjects are processes, users and data."""
    text = re.sub(r"`[^`]*`", "", (ROOT / document).read_text(encoding="utf-8"))
    words = r"\b(?:whoever|whom|nobody|somebody|anybody|everybody|errands?|signs? of life)\b"
    assert not re.findall(words, text, re.IGNORECASE)


def test_every_page_is_reached_from_the_readme():
    reached, found = set(), ["README.md"]
    while found:
        document = found.pop()
        if document in reached or document not in DOCUMENTS:
            continue
        reached.add(document)
        text = (ROOT / document).read_text(encoding="utf-8")
        trees = re.findall(r"^```\{toctree\}$(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        pages = re.findall(r"^(?:.*<)?([\w./-]+)>?$", "\n".join(trees), re.MULTILINE)
        for link in [*re.findall(r"\]\(([^)#\s]+)", text), *(f"{page}.md" for page in pages)]:
            target = (ROOT / document).parent / link
            if not link.startswith("http") and target.exists():
                path = target.resolve().relative_to(ROOT).as_posix()
                found.append(f"{path}/README.md" if target.is_dir() else path)
    assert reached == set(DOCUMENTS)


NO_MODULES = ("torch", "datatrove", "fish", "sbatch", "yaml", "json", "secret", "events")
"""What may follow `snailps.`: an extra, and ends of file names."""


def test_names_of_the_package_that_pages_and_examples_have_are_there():
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.*"), ROOT / "README.md"]
    named = set()
    for page in pages:
        if "lab" not in page.parts and page.suffix in (".md", ".py"):
            named |= set(re.findall(r"\bsnailps((?:\.[A-Za-z_]\w*)+)", page.read_text("utf-8")))
    for name in sorted(named):
        if name[1:].partition(".")[0] not in NO_MODULES:
            assert pydoc.locate(f"snailps{name}") is not None, name


# --- ARCHITECTURE.md -------------------------------------------------------------------------


def is_generated(path):
    """Sources that the build makes: copies of the kernels, headers of Cython."""
    copied = re.fullmatch(r"_kernels_\w+\.pyx", path.name)
    return copied or (path.suffix == ".h" and path.with_suffix(".pyx").exists())


def section(text, title):
    """Text of a section of level 2."""
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE).group(1)


def test_architecture_has_four_pictures_and_twelve_invariants():
    assert len(re.findall(r"^```$", ARCHITECTURE, re.MULTILINE)) == 2 * 4
    numbers = re.findall(r"^(\d+)\. \*\*", section(ARCHITECTURE, "Twelve invariants"), re.MULTILINE)
    assert [int(number) for number in numbers] == list(range(1, 13))


def test_size_of_the_code_is_that_of_the_tree():
    """Lines of snailps/ and tests/ that docs/limits.md has are at most 2% from those here."""
    table = section((ROOT / "docs" / "limits.md").read_text(encoding="utf-8"), "Size of the code")
    for part, label in (("snailps", "snailps, all"), ("tests", "tests")):
        said = re.search(rf"^\| {label} \| [\d,]+ \| ([\d,]+) \|", table, re.MULTILINE).group(1)
        files = [
            path
            for path in (ROOT / part).rglob("*")
            if path.suffix in (".py", ".pyx", ".pxd", ".h") and not is_generated(path)
        ]
        lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
        assert lines == pytest.approx(int(said.replace(",", "")), rel=0.02)


def test_code_map_names_every_directory_and_no_other():
    rows = re.findall(r"^\| ([^|]*)\|", section(ARCHITECTURE, "Code map"), re.MULTILINE)[1:]
    named, before = set(), ""
    for row in rows:
        for place in re.findall(r"`([^`]+)/`", row):
            inside = f"{before.partition('/')[0]}/{place}"
            known = (ROOT / place).is_dir() or (ROOT / "snailps" / place).is_dir()
            before = place if known else inside
            named.add(before)
    homes = (ROOT / "snailps").rglob("__init__.py")
    there = {path.parent.relative_to(ROOT / "snailps").as_posix() for path in homes} - {"."}
    parts = {place for place in there if place.startswith("models/")}
    parts |= {"store/core", "store/checkpoint"}
    assert named - {"tools", "tests"} == there - parts


# --- CHANGELOG.md ----------------------------------------------------------------------------


def test_changelog_has_the_versions_of_both_formats():
    pages = {"Wire": "wire_format.md", "Checkpoint": "checkpoint_format.md"}
    for kind, page in pages.items():
        head = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()[0]
        version = head.rpartition(" ")[2]
        assert f"### {kind} format, version {version}\n" in CHANGELOG


# --- README.md: its claims have figures ---------------------------------------------------------


def claims():
    """Text of the claims above the fold, and the numbers in it."""
    text = README.partition("[docs/benchmarks.md]")[0]
    return " ".join(text.split())


def claimed(pattern):
    """Numbers of a claim."""
    found = re.search(pattern, claims())
    assert found, pattern
    return [float(number.replace(",", "")) for number in found.groups()]


def speeds(title):
    """Words/s or examples/s of each system, table after table of a section of benchmarks.md."""
    for table in section(BENCHMARKS, title).split("\n\n"):
        rows = re.findall(
            r"^\| (?:[^|]*\| )?(snailps|fastText|gensim|Vowpal Wabbit)[^|]*\| ([\d,]{6,}) \|",
            table,
            re.MULTILINE,
        )
        yield [(system, float(rate.replace(",", ""))) for system, rate in rows]


def ratios(title, peer):
    """Speeds of snailps over those of a peer in the same table and job."""
    found = []
    for rows in speeds(title):
        ours = 0.0
        for system, rate in rows:
            if system == "snailps":
                ours = rate
            elif system == peer and ours:
                found.append(ours / rate)
    return found


def test_readme_claim_of_speed_is_measured():
    low, high = claimed(r"([\d.]+) to ([\d.]+) times fastText's words a second")
    found = ratios("Word vectors", "fastText")
    assert low <= min(found)
    assert high <= max(found)
    low, high = claimed(r"and ([\d.]+) to ([\d.]+) times gensim's")
    found = ratios("Word vectors", "gensim")
    assert low <= min(found)
    assert high - 0.5 <= max(found)
    low, high = claimed(r"([\d.]+) to ([\d.]+) times Vowpal Wabbit on clicks")
    runs = re.search(r"\*\*([\d.]+) and, minutes later, ([\d.]+) times the faster", BENCHMARKS)
    assert [low, high] == [round(float(run) - 0.005, 1) for run in runs.groups()]


def test_readme_claim_of_quality_is_measured():
    ours, theirs = claimed(r"WS-353 ([\d.]+\d) and ([\d.]+\d)\)")
    rows = re.findall(
        r"^\| (snailps|fastText 0[\d.]*) \|(?:[^|]*\|){4} ([\d.]+) \|", BENCHMARKS, re.MULTILINE
    )
    assert [float(score) for _, score in rows[:2]] == [ours, theirs]


def test_readme_claim_of_equal_bits_is_measured():
    assert "the same bits with any number of workers" in claims()
    assert re.search(r"^\| the same bits for any workers .*\| all equal \|$", BENCHMARKS, re.M)


def test_readme_claim_of_recovery_is_measured():
    kills, stalls, pushes = claimed(
        r"([\d,]+) kills and ([\d,]+) stalls while servers and workers joined, "
        r"([\d,]+) acknowledged pushes, none lost, every job finished"
    )
    entry = " ".join(
        BENCHMARKS.partition("kills while others join")[2].partition("\n### ")[0].split()
    )
    assert f"{kills:.0f} kills and {stalls:.0f} stalls" in entry
    assert f"{pushes:,.0f} acknowledged pushes, 0 lost, 0 hangs, no job" in entry
    (limit_s,) = claimed(r"shards of a killed server answer again within ([\d.]+) s")
    measured = re.search(r"\| pulls succeed again after that \| [^|]*\| ([\d.]+) s \|", BENCHMARKS)
    assert float(measured.group(1)) <= limit_s
