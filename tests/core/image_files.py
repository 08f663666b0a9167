"""Image files for the tests: one small scene in every accepted format and pixel layout, and EXIF blocks."""

import struct
import zlib
from io import BytesIO

from PIL import Image

SIZE = (48, 32)


def scene(size: tuple[int, int] = SIZE) -> Image.Image:
    """A smooth colour picture without symmetry, so that every turn of it differs."""
    ramp = Image.linear_gradient("L")
    return Image.merge(
        "RGB", [ramp.resize(size), ramp.transpose(Image.Transpose.ROTATE_90).resize(size), ramp.resize(size)]
    )


def encode(image: Image.Image, format: str, **options: object) -> bytes:
    file = BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def frames(format: str, num_frames: int, **options: object) -> bytes:
    """An animation that begins with the scene."""
    later = [Image.new("RGB", SIZE, (index % 256, 0, 0)) for index in range(1, num_frames)]
    return encode(scene(), format, save_all=True, append_images=later, **options)


def exif(orientation: int, byte_order: str = "<") -> bytes:
    mark = b"II*\0" if byte_order == "<" else b"MM\0*"
    return mark + struct.pack(f"{byte_order}IHHHIHHI", 8, 1, 0x0112, 3, 1, orientation, 0, 0)


def jpeg_with_segment(code: int, payload: bytes, file: bytes | None = None) -> bytes:
    """A JPEG with one more segment, put first."""
    file = file or encode(scene(), "JPEG")
    return file[:2] + struct.pack(">BBH", 0xFF, code, len(payload) + 2) + payload + file[2:]


def lossless_jpeg(size: tuple[int, int]) -> bytes:
    """A grey JPEG of the lossless kind: no pixel differs from the one before, which one bit of 0 says."""
    width, height = size
    segments = [
        (0xC4, bytes([0, 1, *[0] * 15, 0])),
        (0xC3, struct.pack(">BHHB", 8, height, width, 1) + bytes([1, 0x11, 0])),
        (0xDA, bytes([1, 1, 0, 1, 0, 0])),
    ]
    head = b"".join(struct.pack(">BBH", 0xFF, code, len(payload) + 2) + payload for code, payload in segments)
    return b"\xff\xd8" + head + bytes(width * height // 8) + b"\xff\xd9"


def png_chunk(kind: bytes, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + kind + payload + struct.pack(">I", zlib.crc32(kind + payload))


def png_with_chunk(chunk: bytes, file: bytes | None = None) -> bytes:
    """A PNG with one more chunk (or several), put after the header."""
    file = file or encode(scene(), "PNG")
    return file[:33] + chunk + file[33:]


def every_kind() -> dict[str, bytes]:
    """Real files of every format and pixel layout that a client may send, by name."""
    rgb = scene()
    rgba = rgb.convert("RGBA")
    rgba.putalpha(Image.linear_gradient("L").resize(SIZE))
    palette = rgb.quantize(16)
    return {
        "jpeg": encode(rgb, "JPEG"),
        "jpeg progressive": encode(rgb, "JPEG", progressive=True),
        "jpeg grey": encode(rgb.convert("L"), "JPEG"),
        "jpeg cmyk": encode(rgb.convert("CMYK"), "JPEG"),
        "jpeg exif": encode(rgb, "JPEG", exif=b"Exif\0\0" + exif(6)),
        "png": encode(rgb, "PNG"),
        "png alpha": encode(rgba, "PNG", exif=exif(3)),
        "png grey alpha": encode(rgba.convert("LA"), "PNG"),
        "png palette": encode(palette, "PNG", transparency=3),
        "png palette alpha": encode(palette, "PNG", transparency=bytes(range(0, 256, 16))),
        "png 1 bit": encode(rgb.convert("1"), "PNG"),
        "png 16 bit": encode(rgb.convert("I;16"), "PNG"),
        "png transparent colour": encode(rgb, "PNG", transparency=rgb.getpixel((0, 0))),
        "png animated": frames("PNG", 3),
        "webp": encode(rgb, "WEBP"),
        "webp lossless": encode(rgba, "WEBP", lossless=True),
        "webp animated": frames("WEBP", 3),
        "gif": encode(rgb, "GIF", comment=b"a comment"),
        "gif transparent": encode(palette, "GIF", transparency=2),
        "gif animated": frames("GIF", 3),
        "bmp": encode(rgb, "BMP"),
        "bmp palette": encode(palette, "BMP"),
        "bmp 1 bit": encode(rgb.convert("1"), "BMP"),
        "bmp alpha": encode(rgba, "BMP"),
    }
