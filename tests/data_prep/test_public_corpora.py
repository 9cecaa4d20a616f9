"""Preparation of the public corpora, from miniature archives with the names and layout of the real ones."""

import gzip
import hashlib
import http.server
import io
import re
import shutil
import tarfile
import threading
from pathlib import Path

import pytest
import sentencepiece
from fairseq.data import Dictionary, data_utils
from sacrebleu.dataset import DATASETS

from data_prep import archives, toy, unpack
from tests.common import ROOT, content, rejected, run

PREP = ROOT / "data_prep"
ARCHIVE = "wmt16_en_de.tar.gz"


def miniature(name, folder):
    run("python", "-m", "data_prep", "miniature", name, "--output", folder, "--train", 200, "--valid", 12, "--test", 20)
    return folder


def prepare(name, folder, *flags, check=True, **options):
    words = ["--manifest", folder / "manifest.tsv", "--output", folder.parent / "data" / name, "--workers", 1]
    return run("bash", PREP / f"{name}.sh", *words, *flags, check=check, **options)


@pytest.fixture(scope="module")
def wmt16(tmp_path_factory):
    """The miniature archive, with the data prepared from it in ../data."""
    folder = miniature("wmt16_en_de", tmp_path_factory.mktemp("wmt16") / "source")
    prepare("wmt16_en_de", folder, "--archive", folder / ARCHIVE)
    return folder


@pytest.fixture
def source(wmt16, tmp_path):
    """A copy of the miniature archive without prepared data."""
    return Path(shutil.copytree(wmt16, tmp_path / "source"))


def test_checksums_of_test_sets_are_those_of_sacrebleu():
    text = (PREP / "wmt14_en_de_spm.tsv").read_text()
    for name in ("wmt13", "wmt14/full"):
        assert f"\tmd5:{DATASETS[name].md5[0]}\t" in text
        assert all(f"\t{member}\t" in text for member in DATASETS[name].langpairs["en-de"][:2])


def test_data_bin_contains_the_sentences_of_the_archive(wmt16):
    data = wmt16.parent / "data" / "wmt16_en_de"
    words = Dictionary.load(str(data / "data-bin" / "dict.de.txt"))
    assert (data / "data-bin" / "dict.en.txt").read_bytes() == (data / "data-bin" / "dict.de.txt").read_bytes()
    with tarfile.open(wmt16 / ARCHIVE) as archive:
        for split, member, number in (("train", "train.tok.clean", 200), ("test", "newstest2014.tok", 20)):
            lines = archive.extractfile(f"{member}.bpe.32000.de").read().decode("utf-8").splitlines()
            expected = [words.string(words.encode_line(line, add_if_not_exist=False)) for line in lines]
            dataset = data_utils.load_indexed_dataset(str(data / "data-bin" / f"{split}.en-de.de"), words)
            assert [words.string(sentence) for sentence in dataset] == expected
            assert len(lines) == number
            assert split == "test" or expected == lines  # no unknown words
    assert (wmt16 / ARCHIVE).read_bytes()[:10] == b"\x1f\x8b\x08\0\0\0\0\0\x02\xff"  # on every version of Python
    assert any("@@" in symbol for symbol in words.symbols)
    assert [path.name for path in data.parent.iterdir()] == ["wmt16_en_de"]
    assert not any(str(wmt16.parent).encode() in file for file in content(data).values())


def unpack_texts(source, path=None, limit=None):
    """Unpack the archive, or what is at another path, to source/texts."""
    target, manifest = source / "texts", unpack.read_manifest(source / "manifest.tsv")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    unpack.unpack(manifest, target, {ARCHIVE: path or source / ARCHIVE}, limit)


def unpack_error(source, path=None):
    with pytest.raises(archives.UserError) as error:
        unpack_texts(source, path)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_rejects_damaged_archives(source):
    archive, manifest = source / ARCHIVE, source / "manifest.tsv"
    intact, text = archive.read_bytes(), manifest.read_text()
    archive.unlink()
    assert f"there is no file {archive}, expected the archive {ARCHIVE}" in unpack_error(source)
    any_checksum = text.replace(f"md5:{hashlib.md5(intact).hexdigest()}", "-")
    gzipped_text = f"archive\t{ARCHIVE}\t-\t-\nmember\t{ARCHIVE}\t{ARCHIVE[:-3]}\t-\ttrain.en"
    page, damaged = b"<!DOCTYPE html><title>Virus scan warning</title>", "is truncated or not a gzipped archive"
    for file, message in ((page, "got a web page"), (b"text", damaged), (intact[: len(intact) // 2], damaged)):
        archive.write_bytes(file)
        for rows in (any_checksum, gzipped_text):
            manifest.write_text(rows)
            assert message in unpack_error(source)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("md5:[0-9a-f]{32}", f"md5:{'0' * 32}", f"the checksum of {ARCHIVE} must be md5:{'0' * 32}; got md5:"),
        ("\t200\t", "\t201\t", "must have 201 lines; got 200"),
        ("\t20\tnewstest2014.de", "\t-\ttrain.de", "the two sides of train must have the same number of lines"),
        ("\t200\t", "\tmany\t", "line 3 must be an archive, a member or a reference"),
    ],
)
def test_rejects_manifests_of_other_archives(old, new, message, source):
    manifest = source / "manifest.tsv"
    manifest.write_text(re.sub(old, new, manifest.read_text()))
    assert message in unpack_error(source)


def pack(source, text=b"", member="train.en", names=("train.en",), **header):
    """Write an archive with this text under each of the names, and a manifest with one member."""
    with tarfile.open(source / ARCHIVE, "w:gz") as archive:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            for field, value in header.items():
                setattr(entry, field, value)
            archive.addfile(entry, io.BytesIO(text))
    rows = f"archive\t{ARCHIVE}\t-\t-\nmember\t{ARCHIVE}\t{member}\t-\ttrain.en"
    (source / "manifest.tsv").write_text(rows)


def test_does_not_follow_links(tmp_path):
    pack(tmp_path, type=tarfile.SYMTYPE, linkname=str(tmp_path / "manifest.tsv"))
    assert "lacks train.en" in unpack_error(tmp_path)
    assert not any((tmp_path / "texts").iterdir())


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ("archive\tNAME\t-\t-", "../train.en"),
        ("archive\tNAME\t-\t-", "/tmp/train.en"),
        ("archive\tNAME\t-\t-", ".."),
        ("member\ta.tgz\tNAME\t-\ttrain.en", "x/../../train.en"),
        ("member\ta.tgz\ttrain.en\t-\tNAME", "../train.en"),
        (f"NAME.gz\t{64 * '0'}\t1\ttrain", "../train.en"),
    ],
)
def test_rejects_manifest_names_in_other_folders(row, name, tmp_path):
    (tmp_path / "manifest.tsv").write_text(row.replace("NAME", name))
    assert "must not lead to another folder" in unpack_error(tmp_path)


@pytest.mark.parametrize("bomb", ["text", "member", "another member", "header"])
def test_rejects_archives_that_unpack_beyond_the_limit(tmp_path, bomb, monkeypatch):
    monkeypatch.setattr(archives, "MIN_LIMIT", 1 << 20)
    archive, text = tmp_path / ARCHIVE, b"a\n" * (4 << 20)
    if bomb == "text":
        pack(tmp_path, member=ARCHIVE[:-3])
        archive.write_bytes(gzip.compress(text))
    elif bomb == "header":
        pack(tmp_path, b"a\n", pax_headers={"comment": text.decode()})
    else:
        pack(tmp_path, text, names=["train.en" if bomb == "member" else "other.en"])
    limit = max(1 << 20, 20 * archive.stat().st_size)
    assert f"must unpack to at most {limit:,} bytes; got more" in unpack_error(tmp_path)
    assert not any((tmp_path / "texts").iterdir())
    if bomb in ("text", "member"):
        unpack_texts(tmp_path, limit=1 << 24)  # --unpacked-limit
        assert (tmp_path / "texts" / "train.en").stat().st_size == len(text)


def test_rejects_archives_with_too_many_entries(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MAX_ENTRIES", 20)
    pack(tmp_path, member="29.en", names=[f"{number}.en" for number in range(30)])
    assert "must have at most 20 entries; got more" in unpack_error(tmp_path)


def test_unpacked_folder_gives_the_same_data_unless_it_is_incomplete(source, wmt16):
    unpacked = source / "unpacked"
    with tarfile.open(source / ARCHIVE) as archive:
        archive.extractall(unpacked, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    prepare("wmt16_en_de", source, "--archive", unpacked)
    actual, expected = (content(folder.parent / "data" / "wmt16_en_de" / "data-bin") for folder in (source, wmt16))
    assert actual == expected
    prepared = Path("data", "wmt16_en_de", "prepared.txt")
    assert f"archive\t{ARCHIVE}\t-\t" in (source.parent / prepared).read_text()  # not verified
    assert f"archive\t{ARCHIVE}\tmd5:" in (wmt16.parent / prepared).read_text()  # control: the archive itself
    assert "is complete, nothing to do" in prepare("wmt16_en_de", source, "--archive", unpacked).stderr

    train = unpacked / "train.tok.clean.bpe.32000.de"
    train.write_bytes(b"".join(train.read_bytes().splitlines(keepends=True)[:150]))
    message = "must have 200 lines; got 150; if it is partly unpacked, give the archive"
    assert message in unpack_error(source, unpacked)
    train.unlink()
    shutil.rmtree(source.parent / "data")
    rejected(prepare("wmt16_en_de", source, "--archive", unpacked, check=False), "lacks train.tok", "partly unpacked")
    assert not (source.parent / "data").exists()


@pytest.mark.skipif(shutil.which("curl") is None, reason="downloads need curl")
def test_interrupted_download_continues_and_wrong_one_is_removed(source):
    def download(*flags, folder=source, check=False):
        flags = ["--url", folder.as_uri(), *flags]
        return prepare("wmt16_en_de", source, *flags, check=check, env={"WMT16_EN_DE_ARCHIVE": "ignored"})

    rejected(download("--archive", "a"), "argument --archive: not allowed with argument --url", status=2)
    rejected(download(folder=source / "missing"), "the download of", "failed; run again to continue")
    archive, downloads = (source / ARCHIVE).read_bytes(), source.parent / "data" / "wmt16_en_de.download"
    (downloads / f"{ARCHIVE}.part").write_bytes(bytes(1000))  # not the start of the archive
    rejected(download(), "did not return the expected archive")
    assert list(downloads.iterdir()) == []
    (downloads / f"{ARCHIVE}.part").write_bytes(archive[:2000])
    download(check=True)
    assert (downloads / ARCHIVE).read_bytes() == archive
    assert (source.parent / "data" / "wmt16_en_de" / "prepared.txt").exists()


class Server(http.server.BaseHTTPRequestHandler):
    """Rejects /forbidden, continues downloads of /ranges, and sends /whole from its start only."""

    text = bytes(range(256)) * 10

    def do_GET(self):
        body = b"" if self.path == "/forbidden" else self.text
        self.send_response({"/forbidden": 403, "/ranges": 206, "/whole": 200}[self.path])
        if self.path == "/ranges":
            start = int(re.fullmatch(r"bytes=(\d+)-", self.headers["Range"])[1])
            body = self.text[start:]
            self.send_header("Content-Range", f"bytes {start}-{len(self.text) - 1}/{len(self.text)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.mark.skipif(shutil.which("curl") is None, reason="downloads need curl")
def test_error_of_the_server_keeps_a_partial_download(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    part = tmp_path / "part"
    with http.server.HTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        part.write_bytes(Server.text[:1000])
        assert not archives.download(f"{url}/forbidden", part)
        assert part.read_bytes() == Server.text[:1000]
        part.write_bytes(b"x" * 1000)
        assert archives.download(f"{url}/ranges", part)
        assert part.read_bytes() == b"x" * 1000 + Server.text[1000:]  # it was continued
        part.write_bytes(b"x" * 1000)
        assert archives.download(f"{url}/whole", part)
        assert part.read_bytes() == Server.text  # control: it could not be continued
        server.shutdown()


@pytest.mark.parametrize(
    ("name", "option", "archive", "languages", "test_set"),
    [
        ("wmt14_en_de_spm", "--source", "", ("en", "de"), "newstest2014"),
        ("iwslt14_de_en", "--archive", "de-en.tgz", ("de", "en"), "test"),
    ],
)
def test_raw_corpora_are_cleaned_and_encoded(name, option, archive, languages, test_set, tmp_path):
    folder = miniature(name, tmp_path / "source")
    manifest = folder / "manifest.tsv"
    known = manifest.read_text()
    manifest.write_text(re.sub(r"sha256:\w+", "-", known))  # as in the public manifests
    flags = ["--vocab-size", 200]
    done = prepare(name, folder, option, folder / archive, *flags)
    data = tmp_path / "data" / name

    source, target = languages
    processor = sentencepiece.SentencePieceProcessor(model_file=str(data / "sentencepiece.model"))
    assert len(processor) == 200
    words = Dictionary.load(str(data / "data-bin" / f"dict.{target}.txt"))
    sets = {
        split: data_utils.load_indexed_dataset(str(data / "data-bin" / f"{split}.{source}-{target}.{target}"), words)
        for split in ("train", "valid", "test")
    }
    left_out = int(re.search(r"(\d+) pairs left out", done.stderr)[1])
    assert 0 < left_out < 100
    held_out = 0
    if name.startswith("iwslt"):
        pairs = toy.corpus(1, {"train": 200, "valid": 12, "test": 20})["train"][22::23]
        in_pieces = [[processor.encode(side, out_type=str) for side in pair] for pair in pairs]
        within_limits = [" ".join(en) for en, de in in_pieces if max(len(en), len(de)) <= 1.5 * min(len(en), len(de))]
        assert [words.string(line) for line in sets["valid"]] == within_limits
        held_out = len(within_limits)
    assert len(sets["train"]) == 200 - left_out - held_out
    assert len(sets["valid"]) == (held_out or 12)
    references = (folder / f"references.{target}").read_text(encoding="utf-8").splitlines()
    assert (data / "raw" / f"{test_set}.{target}").read_text(encoding="utf-8").splitlines() == references
    assert [words.string(line).replace(" ", "").replace("▁", " ").strip() for line in sets["test"]] == references
    # prepared.txt is a manifest with all checksums
    recorded = (data / "prepared.txt").read_text().splitlines()[1:]
    assert recorded == known.splitlines()[1:]
    assert "is complete, nothing to do" in prepare(name, folder, *flags).stderr
    manifest.write_text(f"{known}reference\ttest\t7\t-\n")
    rejected(prepare(name, folder, *flags, check=False), "prepared with different options or files")
