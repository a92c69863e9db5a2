"""Models of floret 0.10.5 and its vectors of words, known and not.

Each is trained by ``floret.train_unsupervised(text, dim=2, epoch=5, minCount=1, thread=1, lr=0.5)``
in the mode and with the hashes that its name says, on 30 lines of six words (`three`: one line
without an end, so that the first word is not `</s>`).
"""

import base64
import zlib

# fmt: off
MODELS = {
    "one": (
        'c-q?~=C9Agz`(!+#H>)vh(t3%F*lTEhSDIp6d=}hmU;ciOv;`e$Od5$xCEvDL&3A@OP|eI!=M2bX7E(cWl(@'
        '|@>0tg<X{{d{bD-=FEOtqGbOV)wYVfPDJQcyBR4g#B(W$nF)y<?mq8Y$D!u6Nw!`yN8D!wv7(`)A1|cZT1f`'
        'cPyt41X$`f|KAI#gwKnAFgShMqJ#v)5x^5&CI@BScr!1`2o!)}B5ML?PXNPn^l^6lQOQr2u;A)&MDXoiv%+#'
        'Gf^2Sy1sZr7MwY@WYi;%<xDPHQC|K^vV%9D9I#YaoAj_qs{eY`I;#f$GeG>bAqg0ka2Tc>'
    ),
    "two": (
        'c-q?~=C9Agz`(!+#H>)vh(t3%u^<pL12G$tSPBs9I?KF%WF}?L4rGHc2wZ~F|DoX7^rg?{tYOfA3Nv`B=Q1e'
        '3IC-h%4014zjefBmf|r<Al9`fOoLXFxn3R)QoROQFSCUwinV6SZoXa2!Q<YwHc-!ImsSGl3Z49C?CW8c&W`f'
        'e<Gp_8rwcv!^?+5et{d#a=F9VT4<reF%AB+B2!uVGIj_>N<v&ZUi$;(~u0`6E@{d3>lzsJTJCJs~gVdt{lv%'
        '}|F<1!bfU*%To&L4|v;O5uujM%-e&BuDpzp1;kdwUW3+0i`otu%G}rtS#y)eDk#Tip+}4&M9FdL75r-9WxIk'
        'iR=SCB?e0GkiBtojFk5c9=K-7}9;P'
    ),
    "three": (
        'c-q?~=C9Agz`(!+#H>)vh(t3%F*^eSfcVTnoC3tU&N8nbnMv8R0oiO&`4dq3KNRGpmNRI<G^ZCG-gbC?DuX&'
        'q;Mw%0&*rRQP=WCi8RTG0PxV{|X}EY^NoGoBacXf%Vp2|KaYk-xUP)q6W@27uaV~=t+;O}}js$^<)o=DiMBc'
        'Y!AQBw*YuNu^yU0HC(CqyZ|0dbP#Lt|czfb()G&{SghWo3gsoS5(4%&ZvvYWk&RO)_R(+GRG?_n1EoC>wSeb'
        '96NbiPIQz3*r2zh2R7|4XG}zYCwIeehn}{bon)?fHM1?00x3W8WnxvL67G{8vE'
    ),
    "four": (
        'c-q?~=C9Agz`(!+#H>)vh(t3%F)tdQ1&C9CSl3zR^&>MWdv+ijghAjEl>QF|&!#VZHfIfk22_~AQ$3eK0mjK'
        'oEoYE}acuO9?GU`gypqh6%;MDIlEkE(%;JpP)Vz|!qRhm+%;H=IS(vKyqQlz`&rfBLfoo$Bg)tdKpfnSdUek'
        '1C-;$macE2CY+xP3ig}n?!0t>%6yEvLATRFA=*)==hot1FWfn92Iw^|)eaoeqAWo-?US4i8k>$u%2tGxaRJ8'
        'N<}EYC++?LKr{-`d4VVD}1T4iLQyNLxkaKiPF>@^!1<oe{g9MfzC5^uxmt=3vXCZrgRHTAMTIEZ+6#&rB=kT'
        'xDw;E2-T;z7>$aYlYP^tGfGhb^+Cy1J!MZi30#GvwBP'
    ),
    "fasttext": (
        'c-q?~=C9Agz`(!+#H>)vh(t3%F(;H}hKhr53J~i$%e;PMCS}hKWP>mWT!Pa7q2Sr{rO)Q9VbFjIGkB`!GAO_'
        '}d8y?LaxjjKez6^bmzY<QnUYzYT3nKtl#^MUk(-)Vl30|Pn3q|c%ODF=m0oms+u`}C3^H(S45Bb5g8-Cfg3='
        '4huIzJbJYiS&cHTY)5&(;V$4&@+Vh46UgeC~s(HwNd<ewF?JdB@eQDY6|@4_Yz0R727sQ'
    ),
}
"""By name: the bytes of the .bin, packed."""
VECTORS = {
    "one": {
        "größe": "-0x1.aca97e0000000p-10 0x1.9488f80000000p-10",
        "a": "-0x1.5830f00000000p-12 0x1.44d18a0000000p-12",
        "new": "-0x1.169aa40000000p-10 0x1.06ec480000000p-10",
        "I'm": "-0x1.2eac700000000p-8 0x1.1da3440000000p-8",
        "日本": "-0x1.f490b00000000p-5 0x1.d864200000000p-5",
        "antidisestablishmentarianism": "-0x1.2332420000000p-9 0x1.12ce7c0000000p-9",
        "</s>": "0x0.0p+0 0x0.0p+0",
        "unseen": "-0x1.0d88ec0000000p-10 0x1.fcba780000000p-11",
        "größer": "-0x1.0a62fa0000000p-9 0x1.f6c9500000000p-10",
        "b": "-0x1.a1e7f60000000p-9 0x1.8a626c0000000p-9",
    },
    "two": {
        "größe": "-0x1.2e4c8a0000000p-10 0x1.1d48c60000000p-10",
        "a": "-0x1.8ffc740000000p-10 0x1.79791e0000000p-10",
        "new": "-0x1.6ebf5a0000000p-10 0x1.5a1af20000000p-10",
        "I'm": "-0x1.c475740000000p-9 0x1.aafe060000000p-9",
        "日本": "-0x1.8a9f420000000p-5 0x1.7469300000000p-5",
        "antidisestablishmentarianism": "-0x1.4aa25c0000000p-10 0x1.38064a0000000p-10",
        "</s>": "0x0.0p+0 0x0.0p+0",
        "unseen": "-0x1.aa721c0000000p-10 0x1.92717c0000000p-10",
        "größer": "-0x1.0ac0fc0000000p-10 0x1.f77abc0000000p-11",
        "b": "-0x1.2bfd580000000p-9 0x1.1b1ad60000000p-9",
    },
    "three": {
        "größe": "-0x1.d017b60000000p-1 0x1.b5f8b00000000p-1",
        "a": "-0x1.0384b60000000p+0 0x1.e9d2b00000000p-1",
        "new": "-0x1.716e5c0000000p-1 0x1.5ca34a0000000p-1",
        "I'm": "-0x1.d4a1060000000p-1 0x1.ba409e0000000p-1",
        "日本": "-0x1.a7dbdc0000000p-1 0x1.90008e0000000p-1",
        "antidisestablishmentarianism": "-0x1.97daac0000000p-1 0x1.80e5f80000000p-1",
        "</s>": "0x0.0p+0 0x0.0p+0",
        "unseen": "-0x1.21772e0000000p-1 0x1.112c500000000p-1",
        "größer": "-0x1.7915200000000p-1 0x1.63dbd00000000p-1",
        "b": "-0x1.6ca0ce0000000p-1 0x1.581aee0000000p-1",
    },
    "four": {
        "größe": "-0x1.864fec0000000p-10 0x1.7057f60000000p-10",
        "a": "-0x1.4c2fde0000000p-10 0x1.397d6a0000000p-10",
        "new": "-0x1.a65bb20000000p-10 0x1.8e95f80000000p-10",
        "I'm": "-0x1.03a24c0000000p-9 0x1.ea0a840000000p-10",
        "日本": "-0x1.27d3080000000p-6 0x1.172c8c0000000p-6",
        "antidisestablishmentarianism": "-0x1.a5c6b80000000p-10 0x1.8e09720000000p-10",
        "</s>": "0x0.0p+0 0x0.0p+0",
        "unseen": "-0x1.6ae52c0000000p-10 0x1.5678440000000p-10",
        "größer": "-0x1.71c60e0000000p-10 0x1.5cf6080000000p-10",
        "b": "-0x1.733e980000000p-10 0x1.5e595e0000000p-10",
    },
    "fasttext": {
        "größe": "-0x1.2c48080000000p-14 0x0.0p+0",
        "a": "-0x1.9060080000000p-16 0x0.0p+0",
        "new": "-0x1.2c48060000000p-14 0x0.0p+0",
        "I'm": "-0x1.3eee3e0000000p-5 0x0.0p+0",
        "日本": "-0x1.1b7ae20000000p-4 0x1.0b57080000000p-4",
        "antidisestablishmentarianism": "-0x1.523f740000000p-14 0x0.0p+0",
        "</s>": "0x0.0p+0 0x0.0p+0",
        "unseen": "-0x1.33fb1a0000000p-14 0x0.0p+0",
        "größer": "-0x1.152ecc0000000p-14 0x0.0p+0",
        "b": "-0x1.9060080000000p-14 0x0.0p+0",
    },
}
"""By name: floret's ``get_word_vector`` of words, as hexadecimal float64."""
# fmt: on


def write(name, path):
    """Write a model; returns words with their vectors, lists of float."""
    path.write_bytes(zlib.decompress(base64.b85decode(MODELS[name])))
    return {w: [float.fromhex(x) for x in row.split()] for w, row in VECTORS[name].items()}
