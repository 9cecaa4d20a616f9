"""From the public archives to fairseq's data, in miniature: the same names and layout."""

import gzip
import hashlib
import io
import os
import shutil
import signal
import sys
import tarfile
from pathlib import Path

import folders
import pytest
import unpack

from tests.common import ROOT, content, run

PREP = ROOT / "data_prep"
SCRIPTS = {"wmt16_en_de": "--archive", "wmt14_en_de_spm": "--source", "iwslt14_de_en": "--archive"}
ARCHIVE = "wmt16_en_de.tar.gz"


def miniature(name, folder):
    run("python", PREP / "miniature.py", name, "--output", folder, "--train", 200, "--valid", 12, "--test", 20)
    return folder


def prepare(name, folder, *flags, check=True, **options):
    given = ["--manifest", folder / "manifest.tsv", "--output", folder.parent / "data" / name, "--workers", 1]
    return run("bash", PREP / f"{name}.sh", *given, "--python", sys.executable, *flags, check=check, **options)


@pytest.fixture(scope="module")
def wmt16(tmp_path_factory):
    """The miniature archive; next to it, the data prepared from it."""
    folder = miniature("wmt16_en_de", tmp_path_factory.mktemp("wmt16") / "source")
    prepare("wmt16_en_de", folder, "--archive", folder / ARCHIVE)
    return folder


@pytest.fixture
def source(wmt16, tmp_path):
    """A copy of the miniature archive, with nothing prepared from it."""
    return Path(shutil.copytree(wmt16, tmp_path / "source"))


def rejected(done, *messages, status=1):
    """This exit status and one line that says error with all of the messages; no traceback."""
    errors = [line for line in done.stderr.split("\n") if "error:" in line]
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    assert any(all(message in line for message in messages) for line in errors), done.stderr


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_archive_or_an_address(name):
    rejected(run("bash", PREP / f"{name}.sh", SCRIPTS[name], "a", "--url", "b", check=False), "exclude each other")


def test_checksums_of_test_sets_are_sacrebleus():
    from sacrebleu.dataset import DATASETS

    text = (PREP / "wmt14_en_de_spm.tsv").read_text()
    for name in ("wmt13", "wmt14/full"):
        assert f"\tmd5:{DATASETS[name].md5[0]}\t" in text
        assert all(f"\t{member}\t" in text for member in DATASETS[name].langpairs["en-de"][:2])


def test_the_prepared_set(wmt16):
    data = wmt16.parent / "data" / "wmt16_en_de"
    from fairseq.data import Dictionary, data_utils

    words = Dictionary.load(str(data / "data-bin" / "dict.de.txt"))
    assert (data / "data-bin" / "dict.en.txt").read_bytes() == (data / "data-bin" / "dict.de.txt").read_bytes()
    with tarfile.open(wmt16 / ARCHIVE) as archive:
        for split, member, number in (("train", "train.tok.clean", 200), ("test", "newstest2014.tok", 20)):
            lines = archive.extractfile(f"{member}.bpe.32000.de").read().decode("utf-8").splitlines()
            dataset = data_utils.load_indexed_dataset(str(data / "data-bin" / f"{split}.en-de.de"), words)
            assert len(dataset) == len(lines) == number
            for index in (0, number - 1):  # words that the training set lacks are unknown
                expected = [word if word in words else words.unk_word for word in lines[index].split(" ")]
                assert words.string(dataset[index]).split(" ") == expected
                assert split == "test" or words.unk_word not in expected
    assert any("@@" in symbol for symbol in words.symbols)
    assert [path.name for path in data.parent.iterdir()] == ["wmt16_en_de"]
    assert not any(str(wmt16.parent).encode() in file for file in content(data).values())


@pytest.fixture
def wrong(source):
    """Unpack in this process, from the archive or from what is given; the message of the error."""
    target = source.parent / "texts"

    def wrong(path=source / ARCHIVE):
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        with pytest.raises(unpack.CorpusError) as error:
            unpack.unpack(unpack.read_manifest(source / "manifest.tsv"), target, {ARCHIVE: path})
        assert "\n" not in str(error.value)
        return str(error.value)

    return wrong


def test_damaged_archives_and_manifests_are_named(source, wrong):
    archive, manifest = source / ARCHIVE, source / "manifest.tsv"
    whole, text = archive.read_bytes(), manifest.read_text()
    expected = hashlib.md5(whole).hexdigest()
    archive.write_text("<!DOCTYPE html><title>Virus scan warning</title>")
    assert "is a web page: " in wrong()
    archive.unlink()
    assert f"there is no file {archive}, expected the archive {ARCHIVE}" in wrong()
    archive.write_bytes(whole)
    for old, new, message in (
        (f"md5:{expected}", f"md5:{'0' * 32}", f"expected md5:{'0' * 32} for {ARCHIVE}"),
        ("\t200\t", "\t201\t", "has 200 lines, expected 201"),
        ("\t20\tnewstest2014.de", "\t-\ttrain.de", "of train are misaligned"),
        ("\t200\t", "\tmany\t", f"{manifest}, line 3: expected an archive"),
    ):
        manifest.write_text(text.replace(old, new))
        assert message in wrong()
    manifest.write_text(text.replace(f"md5:{expected}", "-"))
    for broken in (b"plain text", whole[: len(whole) // 2]):
        archive.write_bytes(broken)
        assert "is truncated or not a gzipped archive" in wrong()


def pack(archive, content, name="train.en", **header):
    """An archive with a text; returns rows of a manifest for it."""
    with tarfile.open(archive, "w:gz") as packed:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        for field, value in header.items():
            setattr(entry, field, value)
        packed.addfile(entry, io.BytesIO(content))
    return [f"archive\t{archive.name}\t-\t-", f"member\t{archive.name}\ttrain.en\t-\ttrain.en"]


def test_a_link_is_not_followed(source, wrong):
    target = str(source / "manifest.tsv")
    rows = pack(source / ARCHIVE, b"", type=tarfile.SYMTYPE, linkname=target)
    (source / "manifest.tsv").write_text("\n".join(rows))
    assert "lacks train.en" in wrong()
    assert list((source.parent / "texts").iterdir()) == []


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("name", ["../train.en", "/tmp/train.en", "..", "x/../../train.en"])
def test_a_manifest_that_leads_out_is_refused(source, wrong, place, name):
    rows = pack(source / ARCHIVE, b"a\n")
    if place == 0:
        rows.insert(0, rows[0].replace(ARCHIVE, name))
    else:
        rows[1] = rows[1].replace("train.en", name, place)
    (source / "manifest.tsv").write_text("\n".join(rows))
    before = content(source.parent)
    assert "must not lead to another folder" in wrong()
    assert content(source.parent) == before
    (source / "manifest.tsv").write_text(f"{name}.gz\t{64 * '0'}\t1\ttrain\n")
    assert name in ("..",) or "must not lead to another folder" in wrong()


@pytest.mark.parametrize("kind", ["text", "member", "another member", "header"])
def test_an_archive_that_is_unpacked_without_end_is_refused(source, wrong, kind, monkeypatch):
    monkeypatch.setattr(unpack, "LEAST_LIMIT", 1 << 20)
    archive, bomb = source / ARCHIVE, b"a\n" * (4 << 20)
    rows = pack(archive, b"a\n" * 1000)  # which unpacks to more than 20 times its size, too
    if kind == "text":
        archive.write_bytes(gzip.compress(bomb))
        rows[1] = f"member\t{ARCHIVE}\t{ARCHIVE[:-3]}\t-\ttrain.en"
    elif kind == "header":
        pack(archive, b"a\n", pax_headers={"comment": bomb.decode()})
    else:
        pack(archive, bomb, "train.en" if kind == "member" else "other.en")
    (source / "manifest.tsv").write_text("\n".join(rows))
    limit = f"must unpack to at most {max(1 << 20, 20 * archive.stat().st_size):,} bytes, but is larger"
    assert limit in wrong()
    assert list((source.parent / "texts").iterdir()) == []
    rows_of_archive, target = unpack.read_manifest(source / "manifest.tsv"), source.parent / "more"
    target.mkdir()
    if kind in ("text", "member"):  # the option
        unpack.unpack(rows_of_archive, target, {ARCHIVE: archive}, 1 << 24)
        assert (target / "train.en").stat().st_size == len(bomb)


def test_an_archive_of_many_entries_is_refused(source, wrong, monkeypatch):
    monkeypatch.setattr(unpack, "MOST_ENTRIES", 20)
    with tarfile.open(source / ARCHIVE, "w:gz") as archive:
        for number in range(30):
            archive.addfile(tarfile.TarInfo(f"{number}.en"))
    (source / "manifest.tsv").write_text(f"archive\t{ARCHIVE}\t-\t-\nmember\t{ARCHIVE}\t29.en\t-\ttrain.en\n")
    assert "must have at most 20 entries, but has more" in wrong()


def test_the_next_preparation_removes_what_a_killed_one_left(tmp_path):
    output = tmp_path / "data"
    (tmp_path / "data.download").mkdir()
    pid = os.fork()
    if pid == 0:
        with folders.new_folder(output):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert len(list(tmp_path.iterdir())) == 2
    with folders.new_folder(output):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "data.download"]


def test_an_unpacked_folder_is_read_unless_it_is_half_unpacked(source, wmt16, wrong):
    unpacked = source / "unpacked"
    with tarfile.open(source / ARCHIVE) as archive:
        archive.extractall(unpacked, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    prepare("wmt16_en_de", source, "--archive", unpacked)
    ours, theirs = (content(folder.parent / "data" / "wmt16_en_de" / "data-bin") for folder in (source, wmt16))
    assert ours == theirs

    train = unpacked / "train.tok.clean.bpe.32000.de"
    train.write_bytes(b"".join(train.read_bytes().splitlines(keepends=True)[:150]))
    assert "has 150 lines, expected 200 (half unpacked? give the archive itself)" in wrong(unpacked)
    train.unlink()
    assert "lacks train.tok.clean.bpe.32000.de: it is half unpacked" in wrong(unpacked)

    shutil.rmtree(source.parent / "data")
    rejected(prepare("wmt16_en_de", source, "--archive", unpacked, check=False), "half unpacked")
    assert not (source.parent / "data").exists()


@pytest.mark.skipif(shutil.which("curl") is None, reason="downloads need curl")
def test_an_interrupted_download_is_continued_and_a_wrong_one_thrown_away(source):
    options = {"check": False, "env": {"WMT16_EN_DE_ARCHIVE": ""}}
    away = prepare("wmt16_en_de", source, "--url", source.joinpath("away").as_uri(), **options)
    rejected(away, "the download of", "failed; run again to continue")
    whole, downloads = (source / ARCHIVE).read_bytes(), source.parent / "data" / "wmt16_en_de.download"
    (downloads / f"{ARCHIVE}.part").write_bytes(bytes(1000))  # what follows is that of the archive
    rejected(prepare("wmt16_en_de", source, "--url", source.as_uri(), **options), "did not give the archive")
    assert list(downloads.iterdir()) == []
    (downloads / f"{ARCHIVE}.part").write_bytes(whole[:2000])
    prepare("wmt16_en_de", source, "--url", source.as_uri(), **{**options, "check": True})
    assert (downloads / ARCHIVE).read_bytes() == whole
    assert (source.parent / "data" / "wmt16_en_de" / "prepared.txt").exists()


@pytest.mark.parametrize(("name", "pieces"), [("wmt14_en_de_spm", 200), ("iwslt14_de_en", 200)])
def test_raw_corpora_become_pieces(tmp_path, name, pieces):
    folder = miniature(name, tmp_path / "source")
    given = folder if SCRIPTS[name] == "--source" else folder / "de-en.tgz"
    manifest = folder / "manifest.tsv"
    # as in the public manifests: the checksums of some archives are not known, and are recorded
    unknown = "\n".join(
        "\t".join("-" if field.startswith("sha256:") else field for field in line.split("\t"))
        for line in manifest.read_text().split("\n")
    )
    known = manifest.read_text()
    manifest.write_text(unknown)
    done = prepare(name, folder, SCRIPTS[name], given, "--vocab-size", pieces)
    data = tmp_path / "data" / name

    import sentencepiece
    from fairseq.data import Dictionary, data_utils

    model = sentencepiece.SentencePieceProcessor(model_file=str(data / "sentencepiece.model"))
    assert len(model) == pieces
    source, target = ("de", "en") if name.startswith("iwslt") else ("en", "de")
    words = Dictionary.load(str(data / "data-bin" / f"dict.{target}.txt"))
    sets = {
        split: data_utils.load_indexed_dataset(str(data / "data-bin" / f"{split}.{source}-{target}.{target}"), words)
        for split in ("train", "valid", "test")
    }
    left_out = int(done.stderr.split(" pairs left out")[0].rsplit(" ", 1)[1])
    assert 0 < left_out < 100, "the miniature has pairs of unequal length"
    held_out = (200 - left_out) // 23 if name.startswith("iwslt") else 0
    assert len(sets["train"]) == 200 - left_out - held_out
    assert len(sets["valid"]) == (held_out or 12)
    references = (folder / f"references.{target}").read_text(encoding="utf-8").splitlines()
    test = "test" if name.startswith("iwslt") else "newstest2014"
    assert (data / "raw" / f"{test}.{target}").read_text(encoding="utf-8").splitlines() == references
    spoken = [words.string(line).replace(" ", "").replace("▁", " ").strip() for line in sets["test"]]
    assert spoken == references
    # the recorded checksums are a manifest, by which another copy is recognised
    recorded = [line for line in (data / "prepared.txt").read_text().splitlines() if line[0] != "#"]
    assert recorded == [line for line in known.splitlines() if line[0] != "#"]
    assert "is complete, nothing to do" in prepare(name, folder, "--vocab-size", pieces).stderr
    manifest.write_text(f"{known}reference\ttest\t7\t-\n")
    done = prepare(name, folder, "--vocab-size", pieces, check=False)
    rejected(done, "prepared with other options or other files")
