"""What a `prepare` command would read, for `--dry-run`."""

from collections.abc import Sequence
from dataclasses import dataclass

from phiseg.data.prepare.found_files import AnnotatedImage


def counted(number: int, noun: str) -> str:
    """Return a number with a noun, in the plural unless the number is 1.

    >>> counted(1, "case"), counted(2, "case")
    ('1 case', '2 cases')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


@dataclass(frozen=True)
class PreviewedCase:
    """Files of a case and the size of its image."""

    files: AnnotatedImage
    size: str


@dataclass(frozen=True, kw_only=True)
class Preview:
    """Cases, annotators, sizes and classes of a source."""

    cases: Sequence[PreviewedCase]
    annotators: Sequence[str]
    classes: Sequence[str]
    size: tuple[int, int]
    """Height and width of the images in the dataset."""
    channels: int

    def __str__(self) -> str:
        """Return one line per case, and a summary."""
        lines = []
        for case in self.cases:
            files = case.files
            absent = [annotator for annotator in self.annotators if annotator not in files.labels]
            patient = f", patient {files.patient}" if files.patient != files.case else ""
            split = f", split {files.split}" if files.split else ""
            missing = f" (no label of {', '.join(absent)})" if absent else ""
            lines.append(
                f"{files.case}{patient}{split}: {case.size}, {counted(len(files.labels), 'annotator')}{missing}"
            )
            lines.append(f"  image {' '.join(map(str, files.images))}")
            lines += [f"  {annotator}: {path}" for annotator, path in files.labels.items()]
        height, width = self.size
        patients = len({case.files.patient for case in self.cases})
        lines += [
            f"{counted(len(self.cases), 'case')} of {counted(patients, 'patient')}",
            f"annotators: {', '.join(self.annotators)}",
            f"images:     {height} x {width} pixels, {counted(self.channels, 'channel')}",
            f"classes:    {', '.join(f'{number} {name}' for number, name in enumerate(self.classes))}",
            "nothing was written; run the command without --dry-run to prepare the dataset",
        ]
        return "\n".join(lines)
