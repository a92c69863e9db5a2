"""snailps.fasttext trains: the answers of the models, and files that the official package opens."""

import official_fasttext
import pytest

import snailps
import snailps.fasttext as fasttext
from snailps.errors import ClusterError


def test_fasttexts_two_trainings(tmp_path):
    text = tmp_path / "text"
    text.write_text("@a north wind rain\n@b south sun sand\n" * 60)
    (tmp_path / "start.vec").write_text("2 4\nnorth .9 .9 .9 .9\ngale .8 .8 .8 .8\n")
    with snailps.local_cluster(workers=1):
        model = fasttext.train_supervised(
            str(text), lr=0.5, dim=4, epoch=50, thread=3, label="@",
            pretrainedVectors=tmp_path / "start.vec",
        )  # fmt: skip
        words = fasttext.train_unsupervised(
            input=text, dim=4, epoch=1, lr=1e-6, bucket=100,
            pretrainedVectors=tmp_path / "start.vec",
        )  # fmt: skip
        with pytest.raises(ClusterError, match="no words left"):
            fasttext.train_unsupervised(str(text), minCount=1000)
        with pytest.raises(ValueError, match="no file"):
            fasttext.train_supervised(str(tmp_path / "none"))
    assert model.predict(["wind rain", "sand"]) == (
        [["@a"], ["@b"]],
        pytest.approx([0.9, 0.9], abs=0.2),
    )
    assert model.test(text)[0] == 120
    assert (model.epoch, model.thread, model.f.getArgs().lr) == (50, 3, 0.5)
    assert set(words.words) == {"north", "wind", "rain", "south", "sun", "sand", "</s>", "@a", "@b"}
    assert words["north"] == pytest.approx(0.9, abs=0.1)
    assert "gale" not in words.words
    assert model["gale"] == pytest.approx(0.8)
    for name, made in {"model": model, "words": words}.items():
        made.save_model(tmp_path / f"{name}.bin")
        official = official_fasttext.module().load_model(str(tmp_path / f"{name}.bin"))
        assert official.get_word_vector("wind") == pytest.approx(made["wind"], abs=1e-6)
        assert official.get_labels() == made.get_labels()
