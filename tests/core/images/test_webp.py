from io import BytesIO

import pytest
from PIL import Image

from services.core.errors import InvalidRequest, TooLarge
from services.core.images import webp
from services.core.images.decoding import decode_image
from services.core.images.references import ImageLimits
from tests.core.image_files import SIZE, encode, exif, scene

pytestmark = pytest.mark.skipif(not webp.is_available(), reason="Pillow's WebP library can't be called directly")


def transparent() -> Image.Image:
    image = scene().convert("RGBA")
    image.putalpha(Image.linear_gradient("L").resize(SIZE))
    return image


def partial_animation(left: int, top: int) -> bytes:
    """An animation on a larger canvas, whose first frame covers only a part of it."""
    file = bytearray(encode(transparent(), "WEBP", save_all=True, append_images=[Image.new("RGBA", SIZE)]))
    frame = file.index(b"ANMF") + 8
    file[24:30] = b"".join((side - 1).to_bytes(3, "little") for side in (100, 80))
    file[frame : frame + 6] = b"".join((place // 2).to_bytes(3, "little") for place in (left, top))
    return bytes(file)


FILES = {
    "lossy": encode(scene(), "WEBP", quality=30),
    "lossless": encode(scene(), "WEBP", lossless=True),
    "lossy alpha": encode(transparent(), "WEBP"),
    "lossless alpha": encode(transparent(), "WEBP", lossless=True, exact=True),
    "one pixel": encode(transparent().resize((1, 1)), "WEBP"),
    "profile": encode(scene(), "WEBP", icc_profile=b"x" * 99, exif=exif(1)),
    "animation": encode(scene(), "WEBP", save_all=True, append_images=[Image.new("RGB", SIZE)]),
    "animation alpha": encode(transparent(), "WEBP", save_all=True, append_images=[Image.new("RGBA", SIZE)]),
    "animation lossless": encode(
        transparent(), "WEBP", save_all=True, lossless=True, append_images=[Image.new("RGBA", SIZE)]
    ),
    "partial animation": partial_animation(20, 10),
}


@pytest.mark.parametrize("kind", FILES)
def test_pixels_of_the_first_frame_are_those_that_pillow_gives(kind: str) -> None:
    with Image.open(BytesIO(FILES[kind])) as expected:
        image = webp.decode(webp.first_frame(FILES[kind]))
        assert (image.mode, image.size) == (expected.mode, expected.size)
        assert image.tobytes() == expected.tobytes()


def test_the_orientation_is_found_behind_the_pixels() -> None:
    file = encode(scene(), "WEBP", exif=b"Exif\0\0" + exif(6))
    assert decode_image(file, ImageLimits()).size == SIZE[::-1]


@pytest.mark.parametrize("kind", FILES)
def test_a_file_that_is_cut_short_is_refused(kind: str) -> None:
    frame_end = FILES[kind].rindex(b"ANMF") if "animation" in kind else len(FILES[kind])
    with pytest.raises(InvalidRequest):
        decode_image(FILES[kind][: frame_end // 2], ImageLimits())


def test_a_frame_that_leaves_its_canvas_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        decode_image(partial_animation(60, 10), ImageLimits())


def test_the_frame_is_as_large_as_it_says_itself() -> None:
    """A small header on a large frame is not believed."""
    file = bytearray(encode(Image.new("RGB", (200, 200)), "WEBP", exif=exif(1)))
    file[24:30] = b"".join((side - 1).to_bytes(3, "little") for side in (10, 10))
    with pytest.raises((InvalidRequest, TooLarge)):
        decode_image(bytes(file), ImageLimits(max_pixels=100))
