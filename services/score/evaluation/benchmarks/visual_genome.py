"""Visual Genome's images, which its owners publish in two folders."""

from pathlib import Path

from services.jobs.published_data import Source

VISUAL_GENOME = Source("Visual Genome's images", "https://homes.cs.washington.edu/~ranjay/visualgenome")
FOLDERS = ("VG_100K", "VG_100K_2", "")


def visual_genome_image(folder: Path, name: str) -> Path:
    """Find an image in VG_100K, VG_100K_2 or the folder itself; the first of them if it is in none."""
    places = [folder / part / name for part in FOLDERS]
    return next((place for place in places if place.exists()), places[0])
