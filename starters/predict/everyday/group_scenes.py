"""Scenes of everyday word problems: equal groups, shares, fractions and measures, in the form of `change_scenes`."""

SCENES = """
# groups
{N} has {k} {boxes}. [Each {box} has|There are|Each {box} holds|Each {box} contains|Each one holds|In each {box} are]
  {b} {things} [in each|]. ? How many {things} [does {he} have|are there|are there {total}]? = k * b
{N} [has|bought|made|filled|packed] {k} {boxes} of {things}. Each {box} has {b} [{things}|]. ? How many {things} [are
  there|does {he} have] {total}? = k * b
{N} [has|bought|made|filled|packed] {k} {boxes} with {b} {things} [in each|each|in each {box}]. ? How many {things}
  [are there|does {he} have|is that] {total}? = k * b
There are {b} {things} in [a|each|every|one] {box}. ? How many {things} are [there in|in] {k} {boxes}? = b * k
[A|One|Each|Every] {box} [holds|has|contains|fits|can hold] {b} {things}. [{N} has {k} {boxes}.|There are {k}
  {boxes}.|] ? How many {things} are [there in|in] {k} {boxes}? = b * k ? How many {things} [can they hold|fit] [in
  {k} {boxes}|]? = b * k
There are {k} [tables|rows|benches|tents|cars|buses|rooms|teams|groups|classes|boats|lines] [in the {place}|]
  [with|of] {b} {peoples} [each|in each|at each|]. ? How many {peoples} are there {total}? = k * b
There are {k} {places} in the town. Each [one|{place}] has {b} {things}. ? How many {things} do they have {total}? = k
  * b
{k} {peoples} [each|all] [bring|brought|have|carry|eat|get|got|bought|planted|made|ate|received|found] {b} {things}
  [each|]. ? How many {things} [are there|is that|did they have|do they have] {total}? = k * b
Each [of {k} {peoples}|{person} in a group of {k}] [gets|has|brings|needs|eats|receives|buys] {b} {things}. ? How many
  {things} [are there|are needed|do they have|is that] {total}? = k * b
Each {person} [gets|has|brings|needs|eats|receives|buys] {b} {things}. There are {k} {peoples}. ? How many {things}
  [are needed|are there|do they need|is that] {total}? = k * b
{N} wants to give {b} {things} to each of {his} {k} friends. ? How many {things} does {he} need? = k * b
{N} {does_it} {b} {things} [each|every|a|per] {period}. ? How many {things} does {he} {do_it} in {k} {period}s? = b *
  k ? How many {things} will {he} {do_it} in {k} {period}s? = b * k
{N} {does_it} {b} {things} [each|every|a|per] {period} for {k} {period}s. ? How many {things} is that {total}? = b * k
{N} can {do_it} {b} {things} [in an|per|an] hour. ? How many [{things}|] can {he} {do_it} in {k} hours? = b * k
A [machine|factory|printer|robot|baker|worker|bakery|farmer|tailor]
  [makes|produces|prints|bakes|builds|packs|finishes] {b} {things} [per|each|every|a] {period}. ? How many [{things}|]
  does it [make|produce|finish] in {k} {period}s? = b * k
In {k} {period}s, {N} {does_it} {a} {things}. | a/k ? How many {things} does {he} {do_it} [per|each|in one|every]
  {period}? = a / k
A [machine|factory|printer|robot|baker|worker|bakery] [makes|produces|prints|bakes|builds] {a} {things} in {k}
  {period}s. ? How many [{things}|] does it make [per|each|in one|every] {period}? = a / k
{N} {does_it} {b} {things} [a|per|each] {period}. | a/b ? How many {period}s does {he} need [for|to {do_it}] {a}
  {things}? = a / b ? How long does it take to {do_it} {a} {things}? = a / b ? How many {period}s will {a} {things}
  take? = a / b
{N} has {a} {things} and {does_it} {b} [of them|] [a|per|each] {period}. ? How many {period}s [will they last|does
  {he} need|does it take|until all are done]? = a / b
A book has {a} pages. {N} reads {b} pages [a|per|each|every] day. ? How many days does {he} need [to finish it|for the
  book|]? = a / b ? How long does the book last? = a / b
{N} reads {b} pages [a|per|each|every] day. ? How many pages does {he} read in {k} days? = b * k ? How many pages does
  {he} read in a week? = b * 7
A [spider|chair|table|dog|car|insect|bike|octopus|truck|stool] has {b} [legs|wheels|arms|feet]. ? How many
  [legs|wheels|arms|feet] do {k} of them have? = b * k
There are {k} [dogs|cats|cows|horses|chairs|tables|sheep|cars]. Each [one|of them] has {b}
  [legs|wheels|doors|spots|feet]. ? How many [legs|wheels|doors|spots|feet] [are there|do they have] {total}? = k * b
A [garden|parking lot|theater|field|sheet|wall|chocolate bar|orchard|choir] has {k} rows [of|with] {b}
  [seats|cars|trees|{things}| stamps|tiles|plants|pieces] [each|in each row|]. ? How many
  [seats|cars|trees|{things}|stamps|tiles|plants|pieces] are there {total}? = k * b
{N} [arranges|puts|plants|lays out|places] {things} in {k} rows of {b}. ? How many {things} are there? = k * b
[A|One] [garden|field|room|floor|wall|yard|carpet] is {a} {length} long and {b} {length} wide. ? What is its area? = a
  * b ? How [large|big] is its area? = a * b ? What is the perimeter? = 2 * (a + b)
A square [garden|field|room|table] has sides of {a} {length}. ? What is its perimeter? = 4 * a ? What is its area? = a
  * a
{N} bought {k} dozen {things}. ? How many {things} [did {he} buy|is that|does {he} have]? = k * 12
[How many {things} are in|There are] {k} dozen {things} [in the {place}|]. ? How many {things} are there? = k * 12
{N} has {k} pairs of [shoes|socks|gloves|earrings|skates]. ? How many [single|] [shoes|socks|gloves|pieces] is that? =
  k * 2
# shares
{N} {share} {a} {things} {equally} [among|between|with] {k} {peoples}. ? How many {things} does each {person}
  [get|receive|have]? = a / k ? How many [{things}|] does each [get|of them get|one get]? = a / k
{k} {peoples} [share|divide|split] {a} {things} {equally}. ? How many {things} does each [{person}|of them|one|] get?
  = a / k ? How many {things} [for each|does each have|are there for each]? = a / k
{N} has {a} {things} [and|to share with|for] {k} {peoples}. [Everyone gets the same number.|All get the same.|They
  share equally. |{He} wants to share them equally.|] ? How many {things} does each {person} get? = a / k ? How many
  [{things}|] can each get? = a / k
{N} [puts|packs|places|packed|put|sorted|sorts|puts] {a} {things} [equally|evenly|] into {k} {boxes}. ? How many
  {things} [are|go] in each {box}? = a / k ? How many {things} does each {box} [hold|get|have|contain]? = a / k
{a} {things} are [split|divided|shared|packed|put|sorted|arranged] [equally|evenly|] [into|in] {k} {boxes}. ? How many
  {things} are [there in|in] each [{box}|]? = a / k ? How many [{things}|] per {box}? = a / k
{N} split {a} {things} [evenly|equally] [into|among|between] {k} {boxes}. ? How many {things} are in each {box} [of
  {N}|]? = a / k
{k} {boxes} [hold|contain|have] {a} {things} [altogether|in total|]. Each {box} has the same number. ? How many
  {things} are in [each| one] {box}? = a / k
{N} has {a} {things}. {He} [puts|packs] {b} [of them|{things}|] in each {box}. ? How many {boxes} [does {he} need|can
  {he} fill|are there|will there be|are needed]? = a / b
{a} {things} [must be|are|were|should be] [packed|put|placed] [in|into] {boxes} of {b} [each|]. ? How many {boxes}
  [are needed|are there|does {N} need|will be filled]? = a / b
[A|Each|One] {box} [holds|fits|can hold|has room for] {b} {things}. ? How many {boxes} [are needed|do you need|does
  {N} need] for {a} {things}? = a / b
{a} {peoples} [are|were] [divided|split|put] into [teams|groups|cars|rows|classes] of {b}. ? How many
  [teams|groups|cars|rows|classes] [are there|is that|do they form|can be made]? = a / b
{a} {peoples} [form|make|are put into|are divided into] {k} [equal|] [teams|groups|rows|lines]. ? How many {peoples}
  are in each [team| group|row|line]? = a / k
Each [car|bus|boat|tent|table|taxi|room|van] [holds|seats|fits|has room for|takes] {b} {peoples}. ? How many
  [cars|buses|boats|tents| tables|taxis|rooms|vans] [are needed|do they need] for {a} {peoples}? = a / b
A {long} [is|of] {a} {length} [long|] [is|was] cut into {k} [equal|] pieces [of the same length|]. ? How long is each
  [piece|one]? = a / k ? How many {length} [long|] is [one|each] piece? = a / k
A {long} of {a} {length} is cut into pieces of {b} {length} [each|]. ? How many pieces [are there|does {N} get|is
  that]? = a / b
{N} [shares|divides|splits] {a} {volume} of {liquid} equally among {k} [glasses|friends|bottles|jugs]. ? How
  [much|many {volume}] does each get? = a / k
A [family|group|class|team] of {k} [people|] [shares|splits|pays] a bill of {p$} equally. ? How much does each
  [person|of them|] pay? = p / k
{k} friends [earned|won|found|got|paid] {p$} [together|] and [split|share|divide] it [equally|evenly]. ? How much
  [money|] does each [of them|friend|] [get|pay]? = p / k
{N} has {a} {things} and gives {b} [of them|] to each {person}. ? How many {peoples} get [some|{things}]? = a / b
{N} has {a} {things}. {He} [puts them in|makes|packs] {boxes} of {b}. ? How many {things} are left over? = a % b
{N} [has|divides|shares] {a} {things} [and divides them|] equally among {k} {peoples}. ? How many {things} are left
  over? = a % k ? How many {things} remain [that can't be shared|]? = a % k
# fractions
{N} [had|has] {a} {things}. {He} [gave|gives] half of them [to {M}|away|]. ? How many {things} did {he} give [away|to
  {M}|]? = a / 2 ? {left} = a / 2
{N} [had|has] {a} {things}. Half of them are {adj}. ? How many [{things}|] are {adj}? = a / 2 ? How many are not
  {adj}? = a / 2
There are {a} {peoples} in [a|the] [class|{place}|club]. Half of them are [girls|women|boys|adults|new]. ? How many
  [girls|women|boys| adults|new ones|of them] are there? = a / 2
{N} [had|has] {a} {things}. {He} {lost} half of them. ? {left} = a / 2 ? How many did {he} lose? = a / 2
{N} [had|has] {a} {things}. A {frac} of them [are|were|is] [{adj}|broken|ripe|eaten]. ? How many [{things}|] are
  [{adj}|that|{adj} or eaten]? = a / {fracn}
{N} [had|has] {a} {things} and [gave|gives|sold|lost|ate|used|sent] {onefrac} of them [to {M}|away|]. ? How many
  {things} [is that|did {he} give away|did {M} get|were given away|did {he} lose]? = a / {fracn}
{N} [had|has] {a} {things} and [gave|gives|sold|lost|ate|used|sent] {onefrac} of them [to {M}|away|]. ? {left} = a -
  (a / {fracn})
{onefrac} of [the|] {a} {peoples} [in the {place}|] [are|were] [absent|boys|girls|men|women|ill|new|on a trip]. ? How
  many {peoples} [are| were|is] that? = a / {fracn} ? How many are not? = a - (a / {fracn})
What is [{onefrac}|half|a half|one half] of {a}? | half ? Give [the number|the answer|the result]. = a / {fracn}
{N} [earned|had|saved] {p$}. {He} [spent|gave away|saved|paid] {onefrac} of it [on {things}|for {things}|]. ? How much
  [did {he} spend| is that|did {he} give away|did {he} pay]? = p / {fracn} ? How much [is left|money is left|does {he}
  have left]? = p - (p / {fracn})
{N} [earned|had|saved] {p$}. {He} [spent|gave away] half of it [on {things}|for {things}|]. ? How much [did {he}
  spend|is left|money is left|does {he} have left]? = p / 2
A [tank|bottle|bucket|jug] [holds|has] {a} {volume} [of {liquid}|]. It is {onefrac} full. ? How many {volume} are in
  it? = a / {fracn}
A [pizza|cake|pie|chocolate bar] has {a} [pieces|slices]. {N} ate {onefrac} of it. ? How many [pieces|slices] did {he}
  eat? = a / {fracn} ? How many [pieces|slices] are left? = a - (a / {fracn})
A [road|trip|race|book|walk|film] is {a} [{unit}|pages|minutes] long. {N} has done {onefrac} of it. ? How
  [far|much|many {unit}] is that? = a / {fracn} ? How [far|much|many] [is|are] left? = a - (a / {fracn})
{N} [had|has] {a} {things}. Three quarters of them are {adj}. ? How many are {adj}? = a * 3 / 4
{N} [had|has] {a} {things} and {lost} three quarters of them. ? How many did {he} lose? = a * 3 / 4
There are {a} {peoples}. Two thirds of them are [boys|girls|women|men|children]. ? How many
  [boys|girls|women|men|children|] [are there |is that]? = a * 2 / 3
{b} percent of {a} {peoples} [voted|came|like {things}|have a {thing}]. | pct ? How many [{peoples}|] is that? = a * b
  / 100
A {place} has {a} {things}. {b}% of them are {adj}. | pct ? How many {things} are {adj}? = a * b / 100
What is {b}% of {a}? | pct ? Give the answer. = a * b / 100
[A|The] {thing} [costs|cost] {p$}. It is {b}% off. | pct ? How much is the discount? = p * b / 100 ? How much does it
  cost now? = p - (p * b / 100)
Half of a number [is|of {things} is] {a}. ? What is the [whole|] number? = a * 2
{onefrac} of {N}'s {things} are {adj}. {He} has {a} {adj} {things}. ? How many {things} does {he} have [in all|]? = a
  * {fracn}
"""
