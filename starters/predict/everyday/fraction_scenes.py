"""Scenes of everyday word problems whose numbers are words without a sign: halves, thirds, doubles and dozens."""

SCENES = """
# parts of money
{N} [had|has|got|earned|found|saved] {p$} and [spent|gave away|lost|lent|saved|used|paid] half of [it|that|the
  money|this]. ? How much [money|] [is left|does {he} have left|remains|did {he} keep|does {he} still have|is that|did
  {he} spend]? = p / 2
{N} [had|has|got|earned] {p$} and [spent|gave away|lost|lent|saved|used] {onefrac} of [it|that|the money]. ? How much
  [money|] [is left|does {he} have left|remains|did {he} keep|does {he} still have]? = p - (p / {fracn}) ? How much
  [money|] [is that|did {he} spend|did {he} give away|did {he} use]? = p / {fracn}
{N} [spends|gives|pays|saves] {onefrac} of {his} {p$} [on {things}|for {things}|for a {thing}|]. ? How much [money|]
  [is that|does {he} spend|does {he} pay]? = p / {fracn} ? How much [is|money is] left? = p - (p / {fracn})
Out of {p$}, {N} [spent|gave away|used] {onefrac}. ? How much is [left|still there]? = p - (p / {fracn}) ? How much
  [is|was] that? = p / {fracn}
[A|The] {thing} costs {p$}. [In the sale|Today|Now|On {day}] it is [half price|half off|sold at half the price|half as
  expensive]. ? [How much does it cost [now|then|]|What is the price now|How much must {N} pay]? = p / 2
[A|The] {thing} costs {p$}. {N} pays {onefrac} of [the price|it|that] [now|at once|]. ? How much [is that|does {he}
  pay]? = p / {fracn} ? How much [is still to be paid|remains|must {he} still pay]? = p - (p / {fracn})
[A|The] {thing} costs {p$}. The {thing2} costs {onefrac} of [that|it|the price]. ? How much [is|does] the {thing2}
  [cost|]? = p / {fracn}
[A|The] {thing} costs {p$}. The {thing2} costs [twice|double] [that|as much|the price]. ? How much [is|does] the
  {thing2} [cost|]? = p * 2
{N} [has|earns|saved|gets] {p$}. {M} [has|earns|saved|gets] [twice|double] [that|as much]. ? How much [money|] [does
  {M} have|is that|does {M} get]? = p * 2
{N} [has|earns|saved] {p$}. {M} [has|earns|saved] half [of that|as much|that]. ? How much [money|] [does {M} have|is
  that]? = p / 2
# parts of things
{onefrac} of the {a} {things} [in the {place}|in the {box}|of {N}|] are {adj}. ? How many [{things}|] are {adj}? = a /
  {fracn} ? How many [{things}|] are not {adj}? = a - (a / {fracn})
There are {a} {things} [in the {place}|]. {onefrac} of them [are|were] [{adj}|sold|broken|gone|red|new]. ? How many
  [{things}|of them|] [is that|are that]? = a / {fracn} ? How many [{things}|] are [left|not|still good]? = a - (a /
  {fracn})
There are {a} {things} [in the {place}|]. Half [of them|of the {things}|] [are|were] [{adj}|sold|broken|gone|new]. ?
  How many [{things}|] [is that|are left|are not|are the others]? = a / 2
{N} [had|has|bought|made] {a} {things} and [gave|sold|ate|lost|used|lent] half [of them|] [to {M}|]. ? How many
  [{things}|] [are left|does {he} have left|did {he} keep|is that|did {M} get]? = a / 2
{N} [ate|used|sold|lost|gave away] half of {his} {a} {things}. ? {left} = a / 2
{N} [ate|used|sold|lost|gave away|read] {onefrac} of {his} {a} {things}. ? {left} = a - (a / {fracn}) ? How many
  [{things}|] [is that|did {he} lose|did {he} use]? = a / {fracn}
{N} has {a} {things}. {M} has {onefrac} of [that|that number|as many]. ? How many [{things}|] does {M} have? = a /
  {fracn}
{N} has {a} {things}, {onefrac} of which are {adj}. ? How many [{adj} {things}|are {adj}|of them are {adj}] [does {he}
  have|]? = a / {fracn} ? How many are not {adj}? = a - (a / {fracn})
[Two thirds|Two-thirds] of [the|] {a} {peoples} [are|were] [absent|boys|women|ill|new|here]. ? How many [{peoples}|]
  [is that|are that|are they]? = a * 2 / 3
[Three quarters|Three-quarters|Three fourths] of [the|] {a} {things} are {adj}. ? How many [{things}|] [is that|are
  {adj}]? = a * 3 / 4
{N} [had|has] {a} {things} and [sold|ate|lost|used] [three quarters|three-quarters] of them. ? {left} = a - (a * 3
  / 4)
{N} [had|has] {a} {things} and [sold|ate|lost|used] [two thirds] of them. ? {left} = a - (a * 2 / 3) ? How many [is
  that|did {he} lose]? = a * 2 / 3
Two fifths of [the|] {a} {peoples} [are|were] [absent|boys|women|ill|new]. ? How many [{peoples}|] [is that|are
  that]? = a * 2 / 5
Three fifths of {a} {things} are {adj}. ? How many [{things}|] [is that|are {adj}]? = a * 3 / 5
{N} [walked|ran|drove|cycled|has done] {onefrac} of [a trip of {a} {unit}|the {a} {unit}|{a} {unit}]. ? How [far|many
  {unit}] [is that|did {he} go]? = a / {fracn} ? How [far|many {unit}] [is it still|are left|remain]? = a - (a /
  {fracn})
A [class|{place}|team|bus] has {a} {peoples}. {onefrac} of them [left|go home|are ill|can swim|are new|are girls]. ? How
  many [{peoples}|] [is that|are they]? = a / {fracn} ? How many [{peoples}|] [remain|are not|are left|stay]? = a - (a
  / {fracn})
A [tank|bottle|bucket|jug|barrel] [holds|has|takes] {a} {volume}. It is half [full|empty]. ? How [many {volume}|much]
  [are|is] in it? = a / 2
[A|One] {thing} weighs {a} {weight}. [Half of it|A half] is [eaten|used|cut off]. ? How [many {weight}|much] [are|is]
  left? = a / 2
# doubles
{N} [had|has] {a} {things}. [The number doubled|{He} doubled them|{He} doubles the number|Now {he} has [twice|double] as
  many|Next {period} {he} has double]. ? {now} = a * 2
{N} [had|has] {a} {things}. [The number tripled|{He} triples the number|Now {he} has [triple|three times] as many]. ?
  {now} = a * 3
[Last year|In {month}|At first] there were {a} {things}. [Now there are|This year there are|Then there were] [twice as
  many|double that|double the number]. ? How many [{things}|] [is that|are there now|are there]? = a * 2
{N} {got} {a} {things}, and {M} [got|found|has|made] [twice|double] [that|as many|that number]. ? How many [{things}|]
  [does {M} have|did {M} get|is that for {M}]? = a * 2
{N} {got} {a} {things}, and {M} half [of that|as many|that]. ? How many [{things}|] [does {M} have|did {M} get]? = a / 2
{N} is {a} years old. {His} {kin} is [double|twice] [that|{his} age|as old]. ? How old is {his} {kin}? = a * 2
{N} is {a} years old. {His} {kin} is half [as old|{his} age|that]. ? How old is {his} {kin}? = a / 2
{N} is {a} years old. {His} {kin} is {onefrac} [as old|of {his} age|of that]. ? How old is {his} {kin}? = a / {fracn}
{N} [runs|walks|rides] {a} {unit}. {M} goes [twice as far|double the distance|twice that]. ? How far does {M} go? = a *
  2
{N} [runs|walks|rides] {a} {unit}. {M} goes half [as far|that|the distance]. ? How far does {M} go? = a / 2
# dozens and pairs
{N} [bought|has|needs|bakes] a dozen {things} and [eats|gives away|loses|uses|breaks] {b} [of them|]. ? {left} = 12 - b
{k} dozen {things} are [in a {box}|in the {place}|for sale]. {b} [are|were] [{adj}|sold|broken]. ? How many [{things}|]
  are [left|not|the others]? = (k * 12) - b
A dozen {things} [cost|costs] {p$}. ? How much [is|does] one [{thing}|] [cost|]? = p / 12 ? How much do {k} dozen cost?
  = p * k
{N} [needs|buys|orders] {a} {things} in {boxes} of a dozen. ? How many [{boxes}|dozen] is that? = a / 12
{N} has {a} [{things}|eggs]. ? How many dozen [{things}|eggs|] [is that|does {he} have]? = a / 12
{k} {boxes} hold a dozen {things} each. ? How many {things} [is that|are there] {total}? = k * 12
{N} has {k} [pairs of {things}|couples of {things}]. ? How many [single|] {things} [is that|are there]? = k * 2
There are {a} [shoes|socks|gloves|skates]. ? How many pairs [is that|are there|can {N} make]? = a / 2
# two steps
{N} [had|has] {a} {things}. {He} [lost|ate|sold|used] half [of them|] and then {got} {b} [more|]. ? {now} = a / 2 + b
{N} [had|has] {p$}. {He} [spent|spends] half of it and then {q$} [more|on {things}|]. ? How much [money|] [is left|does
  {he} have left]? = p / 2 - q
{N} [had|has] {p$}. {He} [spent|spends] {q$} [on {things}|] and then half of the rest [on {things2}|]. ? How much
  [money|] [is left|does {he} have left]? = (p - q) / 2
{N} [buys|bought] {k} {things} for {p$} {each}, [at|for] half price. ? How much [does|did] {he} pay? = k * p / 2
{N} has {a} {things} and {M} has {onefrac} of [that|as many]. ? How many {things} do they have {total}? = a + (a /
  {fracn})
{N} has {a} {things} and {M} has [twice|double] [that|as many]. ? How many {things} do they have {total}? = a + (a * 2)
{N} has {a} {things}. {onefrac} are {adj}. {He} [sells|loses|eats] {b} of the others. ? How many of the others are left?
  = a - (a / {fracn}) - b
"""
