"""Scenes of everyday word problems with two or three steps, in the form of `change_scenes`."""

SCENES = """
{N} [had|has] {a} {things}. {He} {lost} {b} [of them|] and [then|] {got} {c} [more|new ones|]. ? {now} = a - b + c ?
  {left} = a - b + c
{N} [had|has] {a} {things}. {He} {got} {b} more and [then|later|] {lost} {c} [of them|]. ? {left} = a + b - c
{N} [had|has] {a} {things}. {He} {lost} {b} [of them|] {when} and {c} {when}. ? {left} = a - b - c
{N} [had|has] {a} {things}. {He} [gave {b} to {M} and {c} to {his} {kin}|ate {b} and gave away {c}|sold {b} and lost
  {c}]. ? {left} = a - b - c
{N} [had|has] {a} {things}. {He} {got} {b} {when} and {c} {when}. ? {now} = a + b + c
{N} {got} {a} {things} on {day}, {b} on {day} and {c} on {day}. ? How many [{things}|] [did {he} get|is that] {total}?
  = a + b + c
There are {a} {adj}, {b} {adj2} and {c} {adj3} {things}. ? How many {things} are there {total}? = a + b + c
{N} has {a} {things}, {M} has {b} and {O} has {c}. ? How many {things} do they have {total}? = a + b + c
There were {a} {peoples} [on the bus|on the train|in the {place}]. {b} [got off|left|went out] and {c} [got on|came
  in|joined]. ? How many {peoples} are there now? = a - b + c
There were {a} {peoples} [on the bus|on the train|in the {place}]. {b} [came|got on|joined] and [later|then] {c} [got
  off|left]. ? How many {peoples} are there now? = a + b - c
A {place} had {a} {things}. It sold {b} {when} and {c} {when}. ? How many {things} are left? = a - b - c
There are {a} {things}. {b} are {adj}, {c} are {adj2} and the rest are {adj3}. ? How many are {adj3}? = a - b - c
{N} has {a} {things}. {M} has {b} more [than {N}|]. ? How many {things} do they have {total}? = a + (a + b)
{N} has {a} {things}. {M} has {b} [fewer|less] [than {N}|]. ? How many {things} do they have {total}? = a + (a - b)
{N} has {a} {things}. {M} has {k} times as many. ? How many {things} do they have {total}? = a + (k * a) ? How many
  more does {M} have? = (k * a) - a
{N} has {a} {things}. {M} has twice as many. ? How many {things} do they have {total}? = a + (a * 2)
{N} has {a} {things}. {M} has half as many. ? How many {things} do they have {total}? = a + (a / 2)
{N} is {a} years old. {M} is {b} years older. ? How old are they together? = a + (a + b) ? How old will {M} be in {c}
  years? = a + b + c
{N} is {a} years old. {M} is {b} years younger. ? How old will {M} be in {c} years? = a - b + c ? How old are they
  together? = a + (a - b)
{N} is {a} years old. {His} {kin} is {k} times as old. ? How old will {his} {kin} be in {b} years? = (k * a) + b ? How
  much older is {his} {kin}? = (k * a) - a
{N} is {a} years old. {His} {kin} is twice as old. ? How old will {his} {kin} be in {b} years? = (a * 2) + b
{N} [buys|bought] {k} {things} for {p$} {each} and a {thing2} for {q$}. ? How much [does|did] {he} [pay|spend]
  {total}? = (k * p) + q
{N} [buys|bought] {k} {things} for {p$} {each} and {n} {things2} for {q$} {each}. ? How much [did {he} pay|did {he}
  spend|is that|does {he} pay|do they cost] {total}? = (k * p) + (n * q)
[A|One] {thing} costs {p$} and [a|one] {thing2} [costs|] {q$}. {N} [buys|bought] {k} {things} and {n} {things2}. ? How
  much [did {he} pay|did {he} spend|is that|does {he} pay] {total}? = (k * p) + (n * q)
[A|One] {thing} costs {p$} and a {thing2} costs {q$}. ? How much do {k} {things} and a {thing2} cost? = (k * p) + q ?
  How much do {k} {things} and {n} {things2} cost? = (k * p) + (n * q)
{N} [buys|bought] {k} {things} for {p$} {each}. {He} [pays|paid] with {d$}. ? How much [change|] does {he} get
  [back|]? = d - (k * p) ? How much change does {he} [get|receive]? = d - (k * p)
{N} [has|had] {d$}. {He} [buys|bought] {k} {things} [for|at] {p$} {each}. ? How much [money|] [does {he} have left|is
  left|remains|does {he} have now]? = d - (k * p)
{N} [has|had] {d$}. {He} [buys|bought] {k} {things}. [Each|Each one|Each {thing}|Every {thing}] costs {p$}. ? How much
  [money|] [does {he} have left|is left|remains|does {he} have now]? = d - (k * p)
{N} [has|had] {d$}. {He} [buys|bought] a {thing} for {p$} and a {thing2} for {q$}. ? How much [money|] [does {he} have
  left|is left|change does {he} get]? = d - p - q
{N} [buys|bought] a {thing} for {p$} and a {thing2} for {q$} and pays with {d$}. ? How much [change|] does {he} get
  [back|]? = d - (p + q)
{k} {things} cost {p$}. ? How much do {n} {things} cost? = p / k * n ? What [is|would be] the price of {n}
  [{things}|]? = p / k * n
{k} {things} [weigh|take|need|hold] {a} [{weight}|minutes|{volume}]. ? How [many|much] do {n} [weigh|take|need|hold]?
  = a / k * n
A {vehicle} {goes} {a} {unit} in {k} hours. ? How far does it go in {n} hours? = a / k * n
{N} {does_it} {a} {things} in {k} {period}s. ? How many {things} does {he} {do_it} in {n} {period}s? = a / k * n
A recipe for {k} people [needs|uses|calls for] {a} [{measure} of {food}|eggs|{things}]. ? How many
  [{measure}|eggs|{things}] [are needed|does {N} need] for {n} people? = a / k * n
A {vehicle} {goes} {k} hours at {p} {unit} per hour and [then|] {n} hours at {q} {unit} per hour. ? How far does it go
  {total}? = (k * p) + (n * q)
A [trip|road] is {a} {unit} long. {N} {went} {k} hours at {b} {unit} per hour. ? How far [is it still|does {he} still
  have to go]? = a - (k * b)
{N} has {k} {boxes} [with|of] {b} {things} [each|] and {c} [loose {things}|{things} more|other {things}]. ? How many
  {things} does {he} have {total}? = (k * b) + c
{N} has {k} {boxes} [with|of] {b} {things} [each|]. {He} {lost} {c} [{things}|of them|]. ? {left} = (k * b) - c
{N} [bought|has|made] {k} {boxes} of {b} {things} [each|]. {c} [of them|{things}] [are|were]
  [broken|rotten|bad|eaten|sold|gone]. ? How many [good|] {things} are [left|there now]? = (k * b) - c
{N} has {k} {boxes} with {b} {things} each and {n} {boxes} with {c} {things} each. ? How many {things} does {he} have
  {total}? = (k * b) + (n * c)
There are {k} tables with {b} chairs each and {n} [tables|ones] with {c} chairs [each|]. ? How many chairs are there?
  = (k * b) + (n * c)
{N} has {k} {boxes}. Each {box} has {b} {adj} and {c} {adj2} {things}. ? How many {things} are there {total}? = k * (b
  + c)
{k} {peoples} each [have|bring|get|buy] {b} {things} and {c} {things2}. ? How many things is that {total}? = k * (b +
  c)
{N} has {k} {boxes} of {b} {things} [and|. {He}] [shares them equally|divides them evenly|shares them] [among|with]
  {n} {peoples}. ? How many {things} does each {person} get? = k * b / n
{N} [had|has] {a} {things}. {He} [ate|lost|kept|sold|used] {b} [of them|] and [shared|divided] the [rest|others]
  equally among {k} {peoples}. ? How many {things} does each [{person}|] get? = (a - b) / k
{N} [had|has] {a} {things}. {b} [of them|] [broke|were rotten|got lost|were bad]. {He} [put|packed] the [rest|others]
  into {boxes} of {c}. ? How many {boxes} [did {he} fill|are there|does {he} need]? = (a - b) / c
{N} has {a} {adj} and {b} {adj2} {things} and [shares|puts|divides] them equally [among|into] {k} [{peoples}|{boxes}].
  ? How many [{things}|] [does each get|are in each|are there in each]? = (a + b) / k
{N} and {M} [have|picked|found] {a} and {b} {things}. They share them equally. ? How many [{things}|] does each get? =
  (a + b) / 2
{k} friends [buy|order|pay for] a {thing} for {p$} and a {thing2} for {q$} and share the cost [equally|]. ? How much
  does each pay? = (p + q) / k
{N} [had|has] {a} {things}. {He} [gave|gives] half of them [to {M}|away] and [then|] [lost|ate|sold|used] {b} [more|].
  ? {left} = a / 2 - b
{N} [had|has] {a} {things}. {He} [gave|gives] half of them [to {M}|away]. [Then|Later] {he} {got} {b} more. ? {now} =
  a / 2 + b
{N} [had|has] {a} {things}. {He} [lost|ate|sold|used] {b} [of them|] and [then|] gave half of the rest to {M}. ? How
  many {things} did {M} get? = (a - b) / 2 ? {left} = (a - b) / 2
{N} [had|has] {a} {things}. {He} gave {onefrac} of them to {M} and {lost} {b} more. ? {left} = a - (a / {fracn}) - b
There are {a} {peoples}. {onefrac} are [boys|men|adults] and {b} of the others are [ill|absent|new]. ? How many of the
  others are not? = a - (a / {fracn}) - b
{N} [had|has] {p$}. {He} spent half of it on {things} and {q$} on {things2}. ? How much [money|] is left? = p / 2 - q
{N} saves {p$} [a|per|each] {period}. {He} already has {q$}. ? How much does {he} have after {k} {period}s? = (p * k)
  + q
{N} saves {p$} [a|per|each] {period} for {k} {period}s. {He} [then|] [spends|buys a {thing} for] {q$}. ? How much is
  left? = (p * k) - q
{N} wants a {thing} for {d$}. {He} has {p$} and saves {q$} [a|per|each] {period}. ? How many {period}s does {he} need?
  = (d - p) / q
{N} earns {p$} [an|per] hour and works {k} hours [a|per] day. ? How much does {he} earn in {n} days? = p * k * n
{N} earns {p$} [an|per] hour. {He} works {k} hours on {day} and {n} hours on {day}. ? How much does {he} earn? = p *
  (k + n)
{N} {does_it} {b} {things} [an|per|each] hour and works {k} hours [a|per] day. ? How many {things} does {he} {do_it}
  in {n} days? = b * k * n
A {place} has {k} rows [with|of] {b} seats. {c} seats are taken. ? How many seats are [free|empty]? = (k * b) - c
A {place} sold {a} {things} for {p$} each and {b} {things2} for {q$} each. ? How much money did it [get|make|take in]?
  = (a * p) + (b * q)
A ticket costs {p$} for adults and {q$} for children. {k} adults and {n} children [go|come]. ? How much [do they
  pay|is that] {total}? = (k * p) + (n * q)
A [phone|machine|gym] costs {p$} plus {q$} [a|per|each] month. ? How much does it cost for {k} months? = p + (q * k)
{N} [reads|read] {b} pages [a|each|per] day for {k} days. The book has {a} pages. ? How many pages are left? = a - (b
  * k)
A book has {a} pages. {N} read {b} pages {when} and {c} pages {when}. ? How many pages are left? = a - b - c
A {long} is {a} {length} long. {N} cuts off {k} pieces of {b} {length} [each|]. ? How [long is the rest|many {length}
  are left|much is left]? = a - (k * b)
A [tank|barrel|pot] holds {a} {volume}. {N} fills {k} [bottles|jugs|glasses] of {b} {volume} from it. ? How many
  {volume} are left? = a - (k * b)
{N} [bakes|makes] {k} trays of {b} {things}. {He} [sells|eats|gives away] {c} [of them|]. ? How many [{things}|] are
  left? = (k * b) - c
A [bakery|shop|factory] [bakes|makes] {a} {things}. It sells {b} and packs the rest into {boxes} of {c}. ? How many
  {boxes} is that? = (a - b) / c
{N} [runs|walks|swims] {a} {unit} on {day} and twice as [far|much] on {day}. ? How far is that {total}? = a + (a * 2)
The temperature was {a} degrees. It rose by {b} degrees and then fell by {c} degrees. ? What is it now? = a + b - c
{N} scored {a}, {b} and {c} points [in three games|]. ? What is {his} average? = (a + b + c) / 3 ? How many points is
  that {total}? = a + b + c
{N} bought {k} dozen {things} and {lost} {b} [of them|]. ? {left} = (k * 12) - b
{N} [works|sleeps|reads|plays] {k} hours a day. ? How many hours is that in {n} weeks? = k * 7 * n
{N} [practises|reads] {b} minutes a day. ? How many hours is that in {k} days? = b * k / 60
{N} has {k} {boxes} of {a} {things}. {M} has {n} {boxes} of {b} {things}. ? How many more {things} does {N} have? = (k
  * a) - (n * b)
Each of {k} {peoples} needs {b} {things}. There are [only|already|] {c} [{things}|]. ? How many more [{things}|] are
  needed? = (k * b) - c
{N} has {k} {boxes} with {b} {things} each. {He} {got} {n} more {boxes} [of the same kind|]. ? How many {things} does
  {he} have now? = (k + n) * b
[A|The] {thing} costs {p$} and the {thing2} costs {k} times as much. ? How much do they cost {total}? = p + (p * k)
[A|The] {thing} costs {p$}. It is {b}% off [and {N} buys {k}|]. ? How much does it cost now? = p - (p * b / 100)
There are {k} [classes|teams] of {b} {peoples} and {c} [teachers|coaches]. ? How many people are there {total}? = (k *
  b) + c
{k} [buses|cars|boats] [take|carry] {b} {peoples} each. {c} more [go by train|walk|come by bike]. ? How many {peoples}
  [are there|go] {total}? = (k * b) + c
There are {a} {peoples} and {k} [buses|boats|cars] with {b} seats each. ? How many {peoples} have no seat? = a - (k *
  b)
"""
