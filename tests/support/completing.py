"""Settings of a job as its master completes them by the files and what is in them."""

from snailps.api.traits import Adopted, Cut, trait_of
from snailps.files.blocks import expand
from snailps.files.input_files import InputFiles
from snailps.files.scratch import Scratch


def completed(cls, settings):
    trait = trait_of(cls, Adopted)
    adopted = trait.adopt(settings, {}.get)
    tables = trait_of(cls, Cut).reading(adopted)
    with Scratch(adopted.scratch_dir, 0, tables=tables) as scratch:
        return trait.measure(adopted, InputFiles(expand(adopted.input, scratch), scratch))
