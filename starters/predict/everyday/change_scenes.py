"""Scenes of everyday word problems: amounts that change, come together and are compared.

A scene is a line with a body, and lines beginning with `?` that hold a question and its equation. In equations, letters
are the body's numbers. Ranges after `|` replace a letter's usual range. Continued lines are indented.
"""

SCENES = """
# change
{N} [had|has] {a} {things}. {He} {lost} {b} [of them|{things}|]. ? {left} = a - b
{N} {had} {a} {things}. {He} {lost} {b} of them {when}. ? {left} = a - b
{N} {had} {a} {things} [and then|and|but then|but] {lost} {b} [of them|]. ? {left} = a - b
{N} has {a} {things}. [If|Suppose] {he} [gives {b} of them to {M}|gives away {b}|eats {b}|sells {b}|loses {b}|uses {b}
  |gives {M} {b}|throws away {b}], ? how many {things} [will {he} have left|are left|does {he} have left|remain]? = a
  - b
{N} {had} {a} {things}. {M} [took|ate|stole|bought|borrowed|got|used|broke] {b} of [them|{his} {things}]. ? {left} = a
  - b
There [were|are] {a} {things} in the {place}. {b} [of them|] [were|are|got] [sold|broken|eaten|removed|taken away|lost
  |stolen|given away|used|thrown away|borrowed|cut down|damaged|finished|gone|rotten|shipped|carried away]. ? How many
  {things} [are|were] [left|still there|remaining|left in the {place}]? = a - b ? How many {things} [remain|are not
  {lostp}|stayed]? = a - b
[There were|A {place} had] {a} {peoples}. {b} [of them|{peoples}] [left|went home|went away|got off|left early|moved
  away |were absent|dropped out|quit|fell ill|walked out|resigned|retired|stopped]. ? How many {peoples} [are
  left|remained |were left|stayed|are still there|are there now|remain]? = a - b
[There were|There are] {a} {peoples} [in the {place}|on the bus|on a train|in the {place} at noon|at the party]. {b}
  more [came|arrived|joined|got on|came in|entered|joined them|turned up|walked in|boarded|came later]. ? How many
  {peoples} [are there now|were there then|are there in all|are there altogether|is that in total]? = a + b
A {place} has {a} {things}. It [sells|uses|gives away|loses|lends] {b} [of them|] [{when}|]. ? How many {things} [are
  left |does it have left|remain|does the {place} still have]? = a - b
{N} [had|has] {a} {things}. {He} {got} {b} more [{things}|]. ? {now} = a + b
{N} {had} {a} {things} [and then|and|and later] {got} {b} more [{things}|]. ? {now} = a + b
{N} [had|has] {a} {things}. {M} [gave|sent|brought|handed|mailed|sold] {him} {b} [more|other {things}|more
  {things}|{things}]. ? {now} = a + b
{N} {got} {a} {things} {when} and {b} {things} {when}. ? How many {things} did {he} [get|have] {total}? = a + b
{N} [has|had] {a} {things} and [buys|gets|finds|picks|makes|collects|wins|receives] {b} more. ? {now} = a + b
A {place} [has|had] {a} {things}. [It got|It received|The owner bought|Someone brought|They ordered|They added] {b}
  more [{things}|]. ? How many {things} [are there now|does it have now|are there in total|does the {place} have now]?
  = a + b
[There were|There are] {a} {things} [in|on|at] the [{place}|table|tree|box|basket]. [{N} put|Then {N} added|{N}
  brought| Then somebody brought] {b} more. ? How many {things} are [there now|there in all|there altogether|now
  there]? = a + b
{N} had {a} {things}. Now {he} has {b}. | a>b ? How many {things} did {he} [lose|give away|eat|use|sell|lend|throw
  away]? = a - b
{N} had {a} {things}. After [giving|selling|lending] some to {M}, {he} has {b} left. | a>b ? How many {things} did
  {he} [give to {M}|give away|sell|lend|hand over]? = a - b
{N} had {a} {things}. {He} {lost} some [of them|]. Now {he} has {b} [left|{things}|]. | a>b ? How many {things} [did
  {he} lose|are gone|did {he} give away|are missing|did {he} eat|did {he} use]? = a - b
{N} had {a} {things}. {He} {got} some more [{things}|]. Now {he} has {b} [{things}|]. | b>a ? How many {things} did
  {he} [get|buy|find|receive|pick|add|collect]? = b - a
There were {a} {things} in the {place}. Now there are [only|just|] {b}. | a>b ? How many {things} [were taken|are
  missing |disappeared|were sold|are gone]? = a - b
There were {a} {peoples} [on the bus|on the train|in the {place}]. [After some left|After a while|Then some left and],
  there were {b} [left|{peoples}|]. | a>b ? How many {peoples} [left|got off|went home|went out|left the {place}]? = a
  - b
{N} [needs|wants|wants to collect|must collect|has to make|would like to have] {a} {things}. {He} [already|] has {b}
  [of them|{things}|]. | a>b ? How many more [{things}|] does {he} [need|want|have to get|still need]? = a - b
A {place} needs {a} {things}. [There are only|It has|So far it has] {b}. | a>b ? How many [more
  {things}|more|{things}] [are needed|are missing|does it need|must they buy]? = a - b
{N} has {a} {things} [in {his} collection|]. [{He} wants to have|{His} goal is|{He} hopes to reach] {b} [{things}|]. |
  b>a ? How many more [{things}|] [must {he} get|does {he} need|does {he} have to find]? = b - a
{N} {lost} {a} {things} and [now has|still has|has] {b} [left|{things} left|]. ? How many {things} did {he} have
  {first}? = a + b
After [giving {a} {things} to {M}|giving away {a} {things}|selling {a} {things}|eating {a} {things}|losing {a}
  {things}], {N} [has|had] {b} [left|{things} left|]. ? How many {things} did {he} have {first}? = a + b
{N} {got} {a} {things} and now {he} has {b} [{things}|]. | b>a ? How many {things} did {he} have {first}? = b - a
After [buying|finding|getting|picking] {a} [more|] {things}, {N} has {b} [{things}|]. | b>a ? How many {things} did
  {he} have {first}? = b - a
{a} {things} were taken from a {box}, and {b} are still in it. ? How many {things} were in the {box} {first}? = a + b
A [book|novel|magazine|comic] has {a} pages. {N} has [already|] read {b} [of them|pages|]. | a>b ? How many pages [are
  left |does {he} still have to read|are left to read|does {he} have left|remain]? = a - b
{N} read {a} pages {when} and {b} pages {when}. ? How many pages did {he} read {total}? = a + b
{N} [is reading|reads] a book with {a} pages. {He} is on page {b}. | a>b ? How many pages are left? = a - b
The temperature [was|is] {a} degrees [{when}|]. It [fell|dropped|went down|decreased|sank] [by|] {b} degrees. | a>b ?
  What is the temperature now? = a - b
The temperature [was|is] {a} degrees [{when}|]. It [rose|went up|increased|climbed] [by|] {b} degrees [{when}|]. ?
  [What is the temperature now|How warm is it now|What was the temperature then]? = a + b
The temperature was {a} degrees in the morning and {b} degrees [at noon|in the evening|at night]. ? [By how many
  degrees did it change|What is the difference in temperature|How many degrees is the difference]? = max(a,b) -
  min(a,b)
A [tank|barrel|bucket|bottle|pot|jug|pool] [holds|contains|has] {a} {volume} of {liquid}. {N} [pours
  out|uses|drinks|takes out|removes|spills] {b} {volume}. | a>b ? How [many {volume}|much {liquid}] [is|are] left? = a
  - b
A [tank|barrel|bucket|pot|jug|pool] [holds|contains|has] {a} {volume} of {liquid}. {N} [adds|pours in|puts in] {b}
  [more|] [{volume}|]. ? How [many {volume}|much {liquid}] [is|are] [in it now|there now|in the tank]? = a + b
A {long} is {a} {length} long. {N} [cuts off|cuts|uses|removes|saws off] {b} {length}. | a>b ? How [long is the
  rest|many {length} are left|long is the remaining piece|long is it now|much is left]? = a - b
{N} has {a} {things} and {M} has {b} [{things}|]. ? How many {things} do they have {total}? = a + b ? How many
  {things} do {N} and {M} have {total}? = a + b
{N} {got} {a} {things} and {M} {got} {b}. ? How many [{things}|] did they [get|have] {total}? = a + b
{N} has {a} {adj} {things} and {b} {adj2} {things}. ? How many {things} does {he} have [in all|in total|altogether|]?
  = a + b
There are {a} {things} and {b} {things2} in the {place}. ? How many [things|items|{things} and {things2}|of them] are
  there {total}? = a + b
A [bag|box|jar|basket] [holds|has|contains] {a} {adj} and {b} {adj2} {things}. ? How many {things} [are in it|are
  there|does it hold] {total}? = a + b
{N} [planted|picked|saw|counted|bought|sold|made|used|cooked] {a} {things} and {b} {things2}. ? How many
  [plants|things|items| animals|pieces|{things} and {things2}] [is that|did {he} have|are there|were there] {total}? =
  a + b
There are {a} boys and {b} girls in [a|the] [class|team|choir|school|club]. ? How many [children|students|pupils|kids]
  are there {total}? = a + b
[There are|A {place} has] {a} {peoples}. {b} of them are [boys|women|men|adults|children|new|left-handed|wearing
  hats]. | a>b ? How many are [not|girls|men|women|adults|children]? = a - b
[There are|{N} has|{N} bought] {a} {things}. {b} [of them|] are {adj} [and the rest are {adj2}|and the others are
  {adj2}|]. | a>b ? How many [{things}|] are [{adj2}|not {adj}]? = a - b
[There are|{N} has] {a} {things} and {things2} [in all|altogether]. {b} are {things}. | a>b ? How many {things2} are
  there? = a - b
{a} {peoples} [went|came] to the {place} {when} and {b} {when}. ? How many {peoples} [came|went|visited] {total}? = a
  + b
# compare
{N} has {a} {things}. {M} has {b} [{things}|]. | a>b ? How many more [{things}|] does {N} have than {M}? = a - b ? How
  many [fewer|less] [{things}|] does {M} have than {N}? = a - b ? What is the difference [between their numbers of
  {things}|]? = a - b ? By how many [{things}|] does {N} have more than {M}? = a - b
{N} has {a} {things} and {M} has {b} [{things}|]. | b>a ? How many more [{things}|] does {M} have [than {N}|]? = b - a
  ? How many [fewer|less] [{things}|] does {N} have [than {M}|]? = b - a
{N} {got} {a} {things}. {M} {got} {b}. | a>b ? How many more [{things}|] did {N} [get|have] than {M}? = a - b
There are {a} {things} and {b} {things2} [in the {place}|]. | a>b ? How many more {things} than {things2} are there? =
  a - b ? How many fewer {things2} than {things} are there? = a - b
There are {a} {adj} {things} and {b} {adj2} {things} [in the {place}|]. | a>b ? How many more {adj} {things} than
  {adj2} ones are there? = a - b
{N} is {a} {length} tall. {M} is {b} {length} tall. | a>b ? How much taller is {N} than {M}? = a - b ? How many
  {length} taller is {N} [than {M}|]? = a - b ? How much shorter is {M} [than {N}|]? = a - b
[One|The first|A {adj}] {long} is {a} {length} long and [another|the second|a {adj2} one] is {b} {length} [long|]. ?
  How much longer is the [longer|first|{adj}] one? = max(a,b) - min(a,b) ? How long are they {total}? = a + b
[The|A] {thing} weighs {a} {weight} and [the|a] {thing2} weighs {b} {weight}. | a>b ? How much heavier is the {thing}?
  = a - b ? How much do they weigh {total}? = a + b ? How much lighter is the {thing2} [than the {thing}|]? = a - b
[The|A] [tower|building|tree|mountain|hill|bridge] is {a} {length} high. [Another one|The [house|church|tree] next to
  it|The second one] is {b} {length} high. | a>b ? [How much higher is the first one|What is the difference in
  height|How many {length} higher is the first]? = a - b
{N} [ran|walked|drove|rode] {a} {unit} and {M} [ran|walked|drove|rode] {b} {unit}. | a>b ? How much farther did {N} go
  [than {M}|]? = a - b ? How many more {unit} did {N} go? = a - b ? How many {unit} did they go {total}? = a + b
{N} [scored|got|won|earned] {a} points and {M} [scored|got|won|earned] {b} [points|]. | a>b ? By how many points did
  {N} [win|beat {M}|lead]? = a - b ? How many points did they score {total}? = a + b ? How many more points did {N}
  get? = a - b
{N} has {a} {things}. {M} has {b} more [{things}|] than {N}. ? How many {things} does {M} have? = a + b
{N} has {a} {things}. {M} has {b} [fewer|less] [{things}|] than {N}. | a>b ? How many {things} does {M} have? = a - b
{N} has {a} {things}, [which is|that is] {b} more than {M} [has|]. | a>b ? How many {things} does {M} have? = a - b
{N} has {a} {things}, [which is|that is] {b} [fewer|less] than {M} [has|]. ? How many {things} does {M} have? = a + b
{N} {got} {a} {things}. {M} {got} {b} more than {N} [did|]. ? How many {things} did {M} [get|have]? = a + b
{N} {got} {a} {things}. {M} {got} {b} [fewer|less] than {N} [did|]. | a>b ? How many {things} did {M} [get|have]? = a
  - b
There are {a} {things} [in the {place}|]. There are {b} more {things2} than {things}. ? How many {things2} are there?
  = a + b
There are {a} {things} [in the {place}|]. There are {b} [fewer|less] {things2} than {things}. | a>b ? How many
  {things2} are there? = a - b
[A|The] {thing} is {a} {length} long. [A|The] {thing2} is {b} {length} longer. ? How long is the {thing2}? = a + b
[A|The] {thing} is {a} {length} long. [A|The] {thing2} is {b} {length} shorter. | a>b ? How long is the {thing2}? = a
  - b
{N} [scored|weighs|is|has|earned|ran|sold] {a} [{weight}|points|{unit}|dollars]. {M}
  [scored|weighs|has|earned|ran|sold] {b} more. ? How [many|much] [does|did] {M} [have|score|weigh|earn|run|sell]? = a
  + b
{N} [scored|weighs|has|earned|ran|sold] {a} [{weight}|points|{unit}|dollars]. {M} [scored|weighs|has|earned|ran|sold]
  {b} less. | a>b ? How [many|much] [does|did] {M} [have|score|weigh|earn|run|sell]? = a - b
{N} has {a} {things}. {M} has {k} times as many [{things}|] [as {N}|]. ? How many {things} does {M} have? = a * k
{N} has {k} times as many {things} as {M}. {M} has {a} [{things}|]. ? How many {things} does {N} have? = k * a
{N} has {k} times as many {things} as {M}. {N} has {a} [{things}|]. ? How many {things} does {M} have? = a / k
{N} {got} {a} {things}. {M} {got} {k} times [as many|that many|more]. ? How many {things} did {M} get? = a * k
{N} has {a} {things}. {M} has [twice|double|two times] [as many|that number|that many]. ? How many [{things}|] does
  {M} have? = a * 2
{N} has [twice|double] as many {things} as {M}. {M} has {a}. ? How many {things} does {N} have? = a * 2
{N} has [twice|double] as many {things} as {M}. {N} has {a}. ? How many {things} does {M} have? = a / 2
{N} has {a} {things}. {M} has half as many [{things}|] [as {N}|]. ? How many {things} does {M} have? = a / 2
{N} has {a} {things}. {M} has [three times|triple] [as many|that]. ? How many {things} does {M} have? = a * 3
[A|The] {thing} [weighs|costs|is] {a} [{weight}|dollars|{length}] [long|]. [A|The] {thing2} [weighs|costs|is] {k}
  times as [much|long|heavy|expensive]. ? How [much|long|heavy] is the {thing2}? = a * k
A [{vehicle}|bridge|{long}] is {a} {length} long. Another one is twice as long. ? How long is the [other|second] one?
  = a * 2
A [child|plant|tree|puppy|baby] was {a} {length} tall [last year|in May|]. It has grown {b} {length} [since then|]. ?
  How tall is it now? = a + b
A [plant|tree|child] was {a} {length} tall. Now it is {b} {length} tall. | b>a ? How much [has it grown|did it grow]?
  = b - a
"""
