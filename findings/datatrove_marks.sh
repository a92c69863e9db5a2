#!/usr/bin/env bash
# What:     which letters of a page datatrove's search for near-duplicates compares.
# Versions: datatrove 0.10.1, indic-nlp-library 0.92, pythainlp 5.4.0; 2026-12-01.
# Guess:    all of them, in the language that the step is given; at most the accents of Latin are
#           folded.
# Happens:  by default (`norm_unicode_diacritics`) pages are taken apart (NFD) and each nonspacing
#           mark is dropped before words are hashed.  Thai writes its tones and half of its vowels
#           with such marks, Hindi its u and e and its nasals, Japanese what tells ha from ba and pa.
#           So tiger, shirt and mat are one Thai word, chickpea and chosen one Hindi word, mother and
#           papa one Japanese word, also where the language is named: pages that differ in these
#           words only have equal signatures, and one of them goes.  Decontamination by n-grams
#           folds words likewise.  `TextNormConfig(norm_unicode_diacritics=False)` keeps the marks.
# Seen:     equal shingles: tha_Thai 4 of 4, hin_Deva 3 of 3; with marks kept 2 of 3 and 2 of 3;
#           both Japanese words become the first
# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/_prologue.sh"
install 'datatrove[processing]==0.10.1' numpy==2.3.5 tokenizers==0.23.3 orjson==3.13.0 spacy==3.8.18 \
    fasteners==0.20 xxhash==3.8.2 indic-nlp-library==0.92 pythainlp==5.4.0
python - <<'PYTHON'
from datatrove.pipeline.dedup import MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.utils.text import TextNormConfig, simplify_text

PAGES = {
    "tha_Thai": ("เสือ อยู่ ที่ นี่", "เสื้อ อยู่ ที่ นี่"),  # a tiger is here, a shirt is here
    "hin_Deva": ("चना आज घर पर", "चुना आज घर पर"),  # chickpea, chosen
}

def equal(language, **norm):
    config = MinhashConfig(n_grams=2, norm_config=TextNormConfig(**norm))
    step = MinhashDedupSignature("signatures", config=config, language=language)
    one, other = (set(step.get_shingles(page).ravel().tolist()) for page in PAGES[language])
    return f"{len(one & other)} of {len(one)}"

folded = {language: equal(language) for language in PAGES}
kept = {language: equal(language, norm_unicode_diacritics=False) for language in PAGES}
kana = [simplify_text(word) for word in ("ハハ", "パパ")]
print(f"{folded=} {kept=} {kana=}")
assert folded == {"tha_Thai": "4 of 4", "hin_Deva": "3 of 3"}
assert kept == {"tha_Thai": "2 of 3", "hin_Deva": "2 of 3"}
assert kana[0] == kana[1]
PYTHON
