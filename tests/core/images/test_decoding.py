import random
import struct
import threading
import zlib
from io import BytesIO

import numpy as np
import pytest
import skimage.data
from PIL import Image, ImageChops, ImageOps
from structlog.testing import capture_logs

from services.core.errors import FoveaError, InvalidRequest, TooLarge
from services.core.images.decoding import decode_image
from services.core.images.references import ImageLimits
from tests.core.image_files import (
    SIZE,
    encode,
    every_kind,
    exif,
    frames,
    jpeg_with_segment,
    lossless_jpeg,
    png_chunk,
    png_with_chunk,
    scene,
)

LIMITS = ImageLimits()
RED, WHITE = (255, 0, 0), (255, 255, 255)


def largest_difference(one: Image.Image, other: Image.Image) -> int:
    return max(ImageChops.difference(one, other).tobytes())


@pytest.mark.parametrize("kind", every_kind())
def test_every_accepted_kind_of_file_becomes_plain_rgb_pixels(kind: str) -> None:
    image = decode_image(every_kind()[kind], LIMITS)
    assert image.mode == "RGB"
    assert image.size == (SIZE[::-1] if kind == "jpeg exif" else SIZE)
    assert image.info == {}


@pytest.mark.parametrize("kind", ["jpeg", "jpeg progressive", "jpeg grey", "png", "webp", "gif", "bmp", "bmp palette"])
def test_pixels_are_those_that_pillow_gives(kind: str) -> None:
    file = every_kind()[kind]
    with Image.open(BytesIO(file)) as expected:
        assert decode_image(file, LIMITS).tobytes() == expected.convert("RGB").tobytes()


@pytest.mark.parametrize("byte_order", "<>")
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
def test_exif_orientation_is_applied_once(format: str, orientation: int, byte_order: str) -> None:
    file = encode(scene(), format, exif=b"Exif\0\0" + exif(orientation, byte_order), lossless=True)
    image = decode_image(file, LIMITS)
    with Image.open(BytesIO(file)) as opened:
        expected = ImageOps.exif_transpose(opened).convert("RGB")
    assert image.tobytes() == expected.tobytes()
    assert ImageOps.exif_transpose(image).size == image.size


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"II",
        b"nonsense",
        exif(0),
        exif(9),
        exif(6)[:-10],
        b"II*\0" + struct.pack("<I", 0xFFFFFFF0),
        b"II*\0" + struct.pack("<IH", 8, 0xFFFF),
        exif(6).replace(struct.pack("<HH", 0x0112, 3), struct.pack("<HH", 0x0112, 2)),
    ],
)
def test_malformed_exif_leaves_the_image_as_it_is(block: bytes) -> None:
    image = decode_image(jpeg_with_segment(0xE1, b"Exif\0\0" + block), LIMITS)
    assert image.size == SIZE


def test_transparent_pixels_are_laid_over_white() -> None:
    half_red = Image.new("RGBA", (2, 1), (*RED, 0))
    half_red.putpixel((1, 0), (*RED, 128))
    image = decode_image(encode(half_red, "PNG"), LIMITS)
    assert image.getpixel((0, 0)) == WHITE
    assert image.getpixel((1, 0)) == (255, 127, 127)


def test_a_palette_entry_or_a_colour_that_means_transparent_is_white() -> None:
    palette = Image.new("P", (1, 1), 1)
    palette.putpalette([0, 0, 0, *RED])
    for file in (
        encode(palette, "PNG", transparency=1),
        encode(palette, "GIF", transparency=1),
        encode(Image.new("RGB", (1, 1), RED), "PNG", transparency=RED),
        encode(Image.new("L", (1, 1), 7), "PNG", transparency=7),
        encode(Image.new("LA", (1, 1), (7, 0)), "PNG"),
    ):
        assert decode_image(file, LIMITS).getpixel((0, 0)) == WHITE


def test_16_bit_grey_is_scaled_and_not_clipped() -> None:
    grey = Image.new("I;16", (4, 1))
    for x, value in enumerate([0, 0x0FFF, 0x80FF, 0xFFFF]):
        grey.putpixel((x, 0), value)
    image = decode_image(encode(grey, "PNG"), LIMITS)
    assert [image.getpixel((x, 0)) for x in range(4)] == [(v, v, v) for v in (0, 0x0F, 0x80, 0xFF)]


def test_a_16_bit_grey_that_means_transparent_is_white_and_its_neighbours_are_not() -> None:
    values = [0x1234, 0x1235, 0x1334, 0]
    header = struct.pack(">IIBBBBB", len(values), 1, 16, 0, 0, 0, 0)
    row = zlib.compress(b"\0" + struct.pack(">4H", *values))
    for transparent, expected in ((0x1234, [255, 0x12, 0x13, 0]), (0, [0x12, 0x12, 0x13, 255])):
        key = struct.pack(">H", transparent)
        chunks = ((b"IHDR", header), (b"tRNS", key), (b"IDAT", row), (b"IEND", b""))
        file = encode(scene(), "PNG")[:8] + b"".join(png_chunk(kind, body) for kind, body in chunks)
        image = decode_image(file, LIMITS)
        assert [image.getpixel((x, 0)) for x in range(4)] == [(v, v, v) for v in expected]


def test_16_bit_colour_keeps_its_upper_bytes() -> None:
    row = b"\0" + struct.pack(">HHH", 0x12FF, 0x8000, 0xFF00)
    header = struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0)
    file = encode(scene(), "PNG")[:8] + b"".join(
        png_chunk(kind, body) for kind, body in ((b"IHDR", header), (b"IDAT", zlib.compress(row)), (b"IEND", b""))
    )
    assert decode_image(file, LIMITS).getpixel((0, 0)) == (0x12, 0x80, 0xFF)


def test_cmyk_jpeg_keeps_its_colours() -> None:
    image = decode_image(encode(scene().convert("CMYK"), "JPEG", quality=100), LIMITS)
    assert largest_difference(image, scene()) <= 4


def test_ycck_jpeg_keeps_its_colours() -> None:
    """Written as CMYK with the four channels that YCCK would hold, then marked YCCK."""
    inverted = ImageChops.invert(Image.new("RGB", (16, 16), RED)).convert("YCbCr")
    channels = [ImageChops.invert(channel) for channel in inverted.split()]
    file = encode(Image.merge("CMYK", [*channels, Image.new("L", (16, 16), 0)]), "JPEG", quality=100)
    transform = file.index(b"Adobe") + 11
    image = decode_image(file[:transform] + b"\x02" + file[transform + 1 :], LIMITS)
    assert largest_difference(image, Image.new("RGB", (16, 16), RED)) <= 4


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG"])
def test_an_animation_is_its_first_frame(format: str) -> None:
    image = decode_image(frames(format, 20, lossless=True), LIMITS)
    assert largest_difference(image, scene()) <= 16


def test_a_gif_frame_that_leaves_the_screen_is_measured_before_it_is_decoded() -> None:
    file = bytearray(encode(scene(), "GIF"))
    frame = file.index(b"\x2c", 13 + 3 * 256 if file[10] & 0x80 else 13)
    file[frame + 5 : frame + 9] = struct.pack("<HH", 30_000, 30_000)
    with pytest.raises(TooLarge, match="900000000 pixels; the limit is 64000000"):
        decode_image(bytes(file), LIMITS)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
def test_the_smallest_image_is_accepted(format: str) -> None:
    assert decode_image(encode(Image.new("RGB", (1, 1), RED), format), LIMITS).size == (1, 1)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
def test_pixels_sides_and_bytes_are_limited_and_the_message_names_limit_and_value(format: str) -> None:
    file = encode(scene(), format)
    assert decode_image(file, ImageLimits(max_image_bytes=len(file), max_pixels=48 * 32, max_side=48)).size == SIZE
    for limits, message in (
        (ImageLimits(max_image_bytes=len(file) - 1), f"{len(file)} bytes; the limit is {len(file) - 1} bytes"),
        (ImageLimits(max_pixels=48 * 32 - 1), "1536 pixels; the limit is 1535 pixels"),
        (ImageLimits(max_side=47), "48 x 32 pixels; the limit is 47 per side"),
    ):
        with pytest.raises(TooLarge, match=message) as refusal:
            decode_image(file, limits, param="input.3.image")
        assert refusal.value.param == "input.3.image"


@pytest.mark.parametrize("side", [None, 4])
@pytest.mark.parametrize("kind", [kind for kind in every_kind() if "animated" not in kind])
def test_a_file_cut_in_half_is_refused(kind: str, side: int | None) -> None:
    file = every_kind()[kind]
    with pytest.raises(InvalidRequest):
        decode_image(file[: len(file) // 2], LIMITS, side=side)


@pytest.mark.parametrize(
    ("size", "decoded"),
    [
        ((4032, 3024), (1008, 756)),
        ((3024, 4032), (756, 1008)),
        ((1920, 1080), (960, 540)),
        ((896, 896), (448, 448)),
        ((895, 896), (895, 896)),  # under four times the side
        ((640, 480), (640, 480)),
        ((2048, 1365), (2048, 1365)),  # no scale divides both sides
        ((4000, 3012), (1000, 753)),
        ((4000, 3010), (2000, 1505)),
    ],
)
def test_a_large_jpeg_is_decoded_at_no_less_than_twice_the_size_to_which_it_will_be_resized(
    size: tuple[int, int], decoded: tuple[int, int]
) -> None:
    file = encode(Image.new("L", size), "JPEG")
    assert decode_image(file, LIMITS, side=224).size == decoded
    assert decode_image(file, LIMITS).size == size
    assert decode_image(encode(Image.new("1", size), "PNG"), LIMITS, side=224).size == size


@pytest.mark.parametrize("name", ["astronaut", "coffee", "chelsea"])
@pytest.mark.parametrize("kind", [{}, {"progressive": True}, {"subsampling": 0}, {"exif": b"Exif\0\0" + exif(6)}])
def test_a_photograph_that_was_decoded_smaller_is_resized_to_nearly_the_same_pixels(
    name: str, kind: dict[str, object]
) -> None:
    photograph = Image.fromarray(getattr(skimage.data, name)()).resize((1600, 1200))
    file = encode(photograph, "JPEG", quality=90, **kind)
    smaller, whole = (decode_image(file, LIMITS, side=side) for side in (112, None))
    assert [length * 4 for length in smaller.size] == list(whole.size)
    ours, exact = (np.asarray(image.resize((112, 112), Image.Resampling.BICUBIC), float) for image in (smaller, whole))
    assert np.sqrt(np.mean((ours - exact) ** 2)) < 1
    assert np.abs(ours - exact).max() <= 12


def test_a_lossless_jpeg_which_has_no_scales_is_decoded_whole() -> None:
    with capture_logs() as logs:
        image = decode_image(lossless_jpeg((640, 480)), LIMITS, side=16)
    assert (image.size, image.getextrema()) == ((640, 480), ((128, 128),) * 3)
    assert logs == []


def test_a_jpeg_without_its_end_is_read_where_it_would_be_decoded_smaller() -> None:
    file = encode(scene((480, 320)), "JPEG")
    with capture_logs():
        assert decode_image(file[:-2], LIMITS, side=16).tobytes() == decode_image(file, LIMITS).tobytes()


JPEGS = [kind for kind in every_kind() if kind.startswith("jpeg")]


@pytest.mark.parametrize("missing", [1, 2])
@pytest.mark.parametrize("kind", JPEGS)
def test_a_jpeg_without_its_last_two_bytes_is_read_with_a_warning(kind: str, missing: int) -> None:
    file = every_kind()[kind]
    assert file.endswith(b"\xff\xd9")
    with capture_logs() as logs:
        image = decode_image(file[:-missing], LIMITS)
    assert largest_difference(image, decode_image(file, LIMITS)) == 0
    (told,) = logs
    assert (told["log_level"], told["event"]) == ("warning", "a JPEG lacks its last bytes; all pixels are there")


@pytest.mark.parametrize("kind", ["jpeg", "jpeg grey"])
def test_a_jpeg_that_lacks_pixels_is_refused_however_few_they_are(kind: str) -> None:
    file = every_kind()[kind]
    for missing in (5, 10, 40):
        with pytest.raises(InvalidRequest, match="truncated or damaged"):
            decode_image(file[:-missing], LIMITS)


@pytest.mark.parametrize("side", [None, 16])
@pytest.mark.parametrize("kind", [{}, {"progressive": True}])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 0.99])
def test_a_photograph_that_was_cut_off_is_refused_wherever_that_was(
    share: float, kind: dict[str, object], side: int | None
) -> None:
    photograph = Image.fromarray(skimage.data.coffee()).resize((1600, 1200))  # type: ignore[no-untyped-call]
    file = encode(photograph, "JPEG", quality=90, **kind)
    with pytest.raises(InvalidRequest, match="truncated or damaged"):
        decode_image(file[: int(len(file) * share)], LIMITS, side=side)


@pytest.mark.parametrize("kind", every_kind())
def test_no_damage_is_anything_but_an_image_or_a_client_error(kind: str) -> None:
    file = every_kind()[kind]
    chance = random.Random(kind)
    for _ in range(60):
        damaged = bytearray(file)
        for _ in range(chance.choice([1, 1, 2, 8, 64])):
            damaged[chance.randrange(len(file))] ^= 1 << chance.randrange(8)
        assert_answered(bytes(damaged))
    for _ in range(20):
        assert_answered(file[: chance.randrange(len(file))])
    for _ in range(20):
        begin, end = sorted(chance.choices(range(len(file)), k=2))
        assert_answered(file[:begin] + file[end:])
        assert_answered(file[:begin] + chance.randbytes(end - begin) + file[end:])


def assert_answered(data: bytes) -> None:
    try:
        image = decode_image(data, ImageLimits(max_pixels=1_000_000))
    except FoveaError as error:
        assert error.status in (400, 413, 415)
    else:
        assert image.mode == "RGB"


def test_several_threads_decode_at_once() -> None:
    files = every_kind()
    expected = {kind: decode_image(file, LIMITS).tobytes() for kind, file in files.items()}
    failures: list[str] = []

    def decode_all() -> None:
        for kind, file in files.items():
            if decode_image(file, LIMITS).tobytes() != expected[kind]:
                failures.append(kind)

    threads = [threading.Thread(target=decode_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_png_may_carry_text_and_a_profile_without_either_being_read() -> None:
    file = png_with_chunk(png_chunk(b"zTXt", b"key\0\0broken") + png_chunk(b"iCCP", b"name\0\0broken"))
    assert decode_image(file, LIMITS).tobytes() == scene().tobytes()
