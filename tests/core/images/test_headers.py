import struct
import tracemalloc
import zlib

import pytest
from PIL import Image

from services.core.errors import InvalidRequest, TooLarge, UnsupportedMediaType
from services.core.images.decoding import decode_image
from services.core.images.headers import (
    MAX_GIF_BLOCKS,
    MAX_JPEG_SCANS,
    MAX_JPEG_SEGMENTS,
    MAX_PNG_CHUNKS,
    media_type_of,
    read_header,
)
from services.core.images.references import ImageLimits
from tests.core.image_files import SIZE, encode, every_kind, jpeg_with_segment, png_chunk, png_with_chunk, scene

LIMITS = ImageLimits()
MEBIBYTE = 1024 * 1024


@pytest.mark.parametrize("kind", every_kind())
def test_the_size_is_known_before_anything_is_decoded(kind: str) -> None:
    header = read_header(every_kind()[kind])
    assert (header.width, header.height) == SIZE
    assert kind.upper().startswith(header.format)
    assert media_type_of(every_kind()[kind]) == f"image/{header.format.lower()}"


@pytest.mark.parametrize(
    ("file", "found"),
    [
        (encode(Image.new("RGB", (2, 2)), "TIFF"), "TIFF"),
        (encode(Image.new("RGB", (2, 2)), "AVIF"), "AVIF"),
        (encode(Image.new("RGB", (2, 2)), "JPEG2000"), "JPEG 2000"),
        (encode(Image.new("RGB", (16, 16)), "ICO"), "icon"),
        (encode(Image.new("RGB", (2, 2)), "PPM"), "PPM"),
        (encode(Image.new("RGB", (2, 2)), "PDF"), "PDF"),
        (b"\0\0\0\x18ftypheic", "HEIC"),
        (b"\0\0\0\x18ftypisom", "MP4"),
        (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "SVG"),
        (b"8BPS\0\1", "Photoshop"),
    ],
)
def test_a_file_type_that_is_not_accepted_is_named(file: bytes, found: str) -> None:
    with pytest.raises(UnsupportedMediaType, match=found):
        decode_image(file, LIMITS)


@pytest.mark.parametrize("data", [b"", b"\xff", b"hello", b"<html>", b"\0" * 100, b"{}", b"RIFF1234WAVEfmt "])
def test_bytes_that_are_no_image_are_a_bad_request(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_image(data, LIMITS)


def test_run_length_coded_bmp_is_refused_by_name() -> None:
    file = bytearray(encode(scene().convert("P"), "BMP"))
    file[30:34] = struct.pack("<I", 1)
    with pytest.raises(UnsupportedMediaType, match="run-length"):
        decode_image(bytes(file), LIMITS)


def enlarged(kind: str) -> bytes:
    """A small real file whose header claims 60,000 x 60,000 pixels (16,383 a side in WebP, its most)."""
    file = bytearray(every_kind()[kind])
    if kind.startswith("jpeg"):
        frame = file.index(b"\xff\xc2" if "progressive" in kind else b"\xff\xc0")
        file[frame + 5 : frame + 9] = struct.pack(">HH", 60_000, 60_000)
    elif kind == "png":
        file[16:24] = struct.pack(">II", 60_000, 60_000)
        file[29:33] = struct.pack(">I", zlib.crc32(file[12:29]))
    elif kind == "gif":
        file[6:10] = struct.pack("<HH", 60_000, 60_000)
    elif kind == "bmp":
        file[18:26] = struct.pack("<ii", 60_000, -60_000)
    elif kind == "webp":
        file[26:30] = struct.pack("<HH", 16_383, 16_383)
    elif kind == "webp lossless":
        file[21:25] = struct.pack("<I", 16_382 | 16_382 << 14)
    elif kind == "webp animated":
        file[24:30] = (16_382).to_bytes(3, "little") * 2
    return bytes(file)


@pytest.mark.parametrize(
    "kind", ["jpeg", "jpeg progressive", "png", "gif", "bmp", "webp", "webp lossless", "webp animated"]
)
def test_a_small_file_that_claims_a_huge_picture_is_refused_before_memory_is_taken(kind: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge, match="the limit is"):
            decode_image(enlarged(kind), ImageLimits(max_side=100_000))
        assert tracemalloc.get_traced_memory()[1] < MEBIBYTE
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("prefix", [b"zTXt", b"iCCP", b"iTXt"])
def test_a_compressed_png_chunk_is_never_inflated(prefix: bytes) -> None:
    bomb = zlib.compress(bytes(64 * MEBIBYTE), 9)
    payload = {b"zTXt": b"key\0\0", b"iCCP": b"name\0\0", b"iTXt": b"key\0\1\0\0\0"}[prefix] + bomb
    file = png_with_chunk(png_chunk(prefix, payload))
    tracemalloc.start()
    try:
        assert decode_image(file, LIMITS).tobytes() == scene().tobytes()
        assert tracemalloc.get_traced_memory()[1] < MEBIBYTE
    finally:
        tracemalloc.stop()


def test_more_pixel_data_than_the_picture_holds_is_not_inflated() -> None:
    file = encode(scene(), "PNG")
    begin = file.index(b"IDAT") - 4
    bomb = png_chunk(b"IDAT", zlib.compress(bytes(64 * MEBIBYTE), 9))
    tracemalloc.start()
    try:
        assert decode_image(file[:begin] + bomb + png_chunk(b"IEND", b""), LIMITS).size == SIZE
        assert tracemalloc.get_traced_memory()[1] < MEBIBYTE
    finally:
        tracemalloc.stop()


def test_the_parts_of_a_jpeg_are_limited() -> None:
    comment = b"\xff\xfe\0\2"
    file = encode(scene(), "JPEG")
    assert decode_image(file[:2] + comment * 1_000 + file[2:], LIMITS).size == SIZE
    with pytest.raises(TooLarge, match=f"more than {MAX_JPEG_SEGMENTS} segments"):
        decode_image(file[:2] + comment * MAX_JPEG_SEGMENTS + file[2:], LIMITS)


def progressive_with_scans(num_scans: int) -> bytes:
    file = encode(scene(), "JPEG", progressive=True)
    first = file.index(b"\xff\xda")
    second = file.index(b"\xff\xda", first + 2)
    return file[:first] + file[first:second] * num_scans + file[second:]


def test_the_scans_of_a_progressive_jpeg_are_limited() -> None:
    with pytest.raises(TooLarge, match=f"more than {MAX_JPEG_SCANS} scans"):
        decode_image(progressive_with_scans(MAX_JPEG_SCANS + 1), LIMITS)


def test_scans_that_only_follow_a_progressive_jpeg_are_not_counted() -> None:
    """Phones put further pictures, and videos, behind the first."""
    file = encode(scene(), "JPEG", progressive=True)
    assert decode_image(file + file * MAX_JPEG_SCANS, LIMITS).size == SIZE


def test_the_scans_of_a_baseline_jpeg_in_separate_channels_are_limited() -> None:
    file = encode(scene(), "JPEG")
    scan = file.index(b"\xff\xda")
    one_channel = b"\xff\xda\0\x08\1\1\0\0\x3f\0\0"
    with pytest.raises(TooLarge, match="scans"):
        decode_image(file[:scan] + one_channel * (MAX_JPEG_SCANS + 1) + file[scan:], LIMITS)


def test_the_chunks_of_a_png_are_limited() -> None:
    empty = png_chunk(b"tEXt", b"")
    assert decode_image(png_with_chunk(empty * 1_000), LIMITS).size == SIZE
    with pytest.raises(TooLarge, match=f"more than {MAX_PNG_CHUNKS} chunks"):
        decode_image(png_with_chunk(empty * MAX_PNG_CHUNKS), LIMITS)


def test_a_second_header_does_not_smuggle_in_a_larger_picture() -> None:
    second = png_chunk(b"IHDR", struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0))
    with pytest.raises(TooLarge, match="900000000 pixels"):
        decode_image(png_with_chunk(second), LIMITS)


def test_the_blocks_before_a_gifs_first_frame_are_limited() -> None:
    file = encode(scene(), "GIF")
    palette_end = 13 + (3 << (file[10] & 7) + 1)
    for num_blocks, accepted in ((1_000, True), (MAX_GIF_BLOCKS + 1, False)):
        comment = b"\x21\xfe" + b"\1x" * num_blocks + b"\0"
        commented = file[:palette_end] + comment + file[palette_end:]
        if accepted:
            assert decode_image(commented, LIMITS).tobytes() == decode_image(file, LIMITS).tobytes()
        else:
            with pytest.raises(TooLarge, match=f"more than {MAX_GIF_BLOCKS} blocks"):
                decode_image(commented, LIMITS)


def test_metadata_of_a_jpeg_is_dropped_and_what_names_its_colours_is_kept() -> None:
    profile, thumbnail = b"ICC_PROFILE\0\1\1" + bytes(3_000), b"Exif\0\0" + bytes(3_000)
    file = encode(scene().convert("CMYK"), "JPEG")
    heavy = jpeg_with_segment(0xE2, profile, jpeg_with_segment(0xE1, thumbnail, file))
    assert read_header(heavy).data == file


def test_a_jpeg_without_a_frame_or_without_a_scan_is_a_bad_request() -> None:
    file = encode(scene(), "JPEG")
    frame, scan = file.index(b"\xff\xc0"), file.index(b"\xff\xda")
    for broken in (file[:scan] + b"\xff\xd9", file[:scan], file[:frame] + file[scan:], file[: frame + 6]):
        with pytest.raises(InvalidRequest):
            decode_image(broken, LIMITS)
