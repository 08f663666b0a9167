"""Scenes of everyday word problems: shopping, travel, cooking, ages, time and large numbers, like `change_scenes`."""

SCENES = """
# shopping
{N} [buys|bought|got|picked up|ordered] {k} {things} for {p$} {each}. ? How much [did {he} pay|did {he} spend|does
  {he} pay|do they cost| is that|money did {he} spend|did they cost] {total}? = k * p
{N} [buys|bought|got|ordered] {k} {things}. [Each {thing}|Each one|One {thing}|A {thing}|Every {thing}] [costs|cost]
  {p$}. ? How much [did {he} pay|did {he} spend|does {he} pay|do they cost|is that|must {he} pay|did they cost|is the
  total|does it cost] {total}? = k * p
[A|One|Each] {thing} costs {p$}. ? How much do {k} {things} cost? = k * p ? What is the price of {k} {things}? = k * p
  ? How much [is it for|would you pay for|will {N} pay for|are] {k} {things}? = k * p
{things} [cost|are|sell for] {p$} {each}. ? How much [do|would] {k} [of them|{things}] cost? = k * p
[Tickets|Entrance tickets|{things}] cost {p$} per person. ? How much [does|must] a [family|group|class] of {k} pay? =
  k * p
A ticket [costs|is] {p$}. ? How much do {k} [tickets|{peoples}] [cost|pay]? = k * p
{N} [pays|paid|spent] {p$} for {k} {things}. ? How much [does|did] [one|each|a] [{thing}|] cost? = p / k ? What
  [is|was] the price of [one|a|each] {thing}? = p / k
{k} {things} cost {p$} [together|in total|]. ? How much [does|is] [one|each|a] {thing} [cost|]? = p / k ? What is the
  price of one {thing}? = p / k
{N} has {p$}. [A|One|Each] {thing} costs {q$}. | p/q ? How many {things} can {he} buy? = p / q
[A|One|Each] {thing} costs {q$}. ? How many {things} can [{N}|you|I] buy [with|for] {p$}? = p / q
{N} [spent|paid] {p$} on {things} [that cost|at] {q$} {each}. ? How many {things} did {he} buy? = p / q
{N} has {p$}. {He} [buys|bought|gets|wants to buy] a {thing} for {q$}. | p>q ? How much [money|] [does {he} have
  left|is left|is left over |will {he} have left|remains|has {he} left]? = p - q
{N} had {p$} [and spent|. {He} spent|. {He} paid] {q$} [on a {thing}|for {things}|on {things}|]. | p>q ? How much
  [money|] [does {he} have left|is left|is left over|remains|does {he} have now|did {he} have left]? = p - q
A {thing} costs {q$}. {N} [pays with|gives the cashier|pays with a bill of|hands over] {p$}. | p>q ? How much change
  does {he} get [back|]? = p - q ? How much [does {he} get back|is the change|money does {he} get back]? = p - q
{N} [buys|bought] a {thing} for {q$} and [pays with|gives] {p$}. | p>q ? [How much change|How much] does {he} get
  [back|]? = p - q
{N} [buys|bought] a {thing} for {p$} and a {thing2} for {q$}. ? How much [did {he} spend|does {he} pay|is that|did
  {he} pay|do they cost|did they cost] {total}? = p + q
A {thing} costs {p$} and a {thing2} costs {q$}. ? How much do [they|both] cost {total}? = p + q ? How much is one of
  each? = p + q
A {thing} costs {p$}. A {thing2} costs {q$}. | p>q ? How much more does the {thing} cost [than the {thing2}|]? = p - q
  ? How much [cheaper|less] is the {thing2}? = p - q ? What is the difference in price? = p - q ? How much more
  expensive is the {thing}? = p - q
A {thing} costs {p$}. A {thing2} costs {q$} more. ? How much does the {thing2} cost? = p + q
A {thing} costs {p$}. A {thing2} [costs {q$} less|is {q$} cheaper]. | p>q ? How much does the {thing2} cost? = p - q
[A|The] {thing} [cost|usually costs|costs] {p$}. [It is now {q$} cheaper|It is {q$} off|There is a discount of
  {q$}|The price was reduced by {q$}]. | p>q ? [How much does it cost now|What is the new price|What does it cost|How
  much does {N} pay]? = p - q
The price of a {thing} [rose|went up|increased] [by|] {q$} from {p$}. ? What is the new price? = p + q
{N} [wants|would like] [to buy|] a {thing} that costs {p$}. {He} has [only|already|saved|] {q$}. | p>q ? How much more
  [money|] does {he} need? = p - q ? How much [money|] is missing? = p - q ? How many more dollars must {he} save? = p
  - q
{N} is saving for a {thing} [for|that costs|worth] {p$}. {He} has saved {q$} [so far|]. | p>q ? How much more must
  {he} save? = p - q
{N} saves {p$} [a|per|each|every] {period}. ? How much [money|] does {he} [save|have] [in|after] {k} {period}s? = p *
  k
{N} saves {q$} [a|per|each|every] {period} for a {thing} [for|that costs] {p$}. ? How many {period}s [does it
  take|does {he} have to save]? = p / q ? How long must {he} save? = p / q
{N} earns {p$} [an|per|each] hour. ? How much does {he} earn in {k} hours? = p * k ? How much does {he} [make|get] for
  {k} hours? = p * k
{N} [works|worked] {k} hours [and earns|for|at] {p$} [an|per] hour. ? How much [money|] [does|did] {he}
  [earn|make|get]? = k * p
{N} [earned|was paid|got] {p$} for {k} [hours|days|weeks] [of work|]. ? How much [did {he} earn|is that|was {he} paid]
  per [hour|day|week]? = p / k
{N} [earned|got|was given|received] {p$} {when} and {q$} {when}. ? How much money did {he} get {total}? = p + q
{N} has {p$} and {M} has {q$}. ? How much money do they have {total}? = p + q
{N} has {p$}. {M} [gives|gave] {him} {q$} [more|]. ? How much [money|] does {he} have now? = p + q
{N} lends {M} {q$} of {his} {p$}. | p>q ? How much does {N} have left? = p - q
[The rent|A phone plan|A gym|A subscription|A garage] costs {p$} [a|per] month. ? How much is that [for|in] {k}
  months? = p * k ? How much is that a year? = p * 12
{N} has {k} [coins|bills|notes] of {p$} each. ? How much money [does {he} have|is that]? = k * p
{N} has {k} quarters. ? How many cents is that? = k * 25
{N} has {k} [dimes|nickels]. | dime ? How many cents [is that|does {he} have]? = k * 10
{k} dollars ? How many cents is that? = k * 100
{a} {weight} of {food} cost {p$}. ? How much does one [{weight1}|] cost? = p / a
{food} costs {p$} [a|per] [kilo|pound|kilogram]. ? How much do {k} [kilos|pounds|kilograms] cost? = k * p
# travel
A {vehicle} {goes} [at|] {p} {unit} [per|an] hour [for {k} hours|]. ? How far does it {go} in {k} hours? = p * k ? How
  many {unit} does it {go} in {k} hours? = p * k
A {vehicle} {goes} {p} {unit} [per|an|in one|every|each] hour. ? How far does it {go} in {k} hours? = p * k
A {vehicle} {goes} at {p} {unit} per hour for {k} hours. ? How far does it {go}? = p * k ? What distance does it
  cover? = p * k
{N} {went} [for {k} hours at|at] {p} {unit} per hour [for {k} hours|for {k} hours]. ? How far did {he}
  [go|get|travel]? = p * k
{N} {went} {a} {unit} in {k} hours. | a/k ? What was {his} [average|] speed? = a / k ? How [far|many {unit}] did {he}
  go [per|in one|each] hour? = a / k ? How fast did {he} go? = a / k
A {vehicle} {goes} {a} {unit} in {k} hours. ? How fast [is it|does it go]? = a / k ? What is its [average|] speed? = a
  / k
A {vehicle} {goes} [at|] {b} {unit} [per|an] hour. | a/b ? How [long|many hours] does it take [for|to go|to travel]
  {a} {unit}? = a / b ? How many hours does it need for {a} {unit}? = a / b
{N} [must|has to|wants to] [drive|walk|go|travel|ride] {a} {unit} at {b} {unit} per hour. ? How [long|many hours] does
  it take? = a / b
[The trip|The journey|The way|The road|The route|The walk|A race] [to {place2}|] is {a} {unit} [long|]. {N} has
  [already|] {went} {b} {unit}. | a>b ? How [far|many {unit}] [does {he} still have to go|is it still|are left|is
  left|remain|more must {he} go]? = a - b
It is {a} {unit} [to|from here to] {place2}. {N} has [already|] {went} {b} [{unit}|of them|]. | a>b ? How [far|many
  {unit}] [is it still| are left|is left|remain]? = a - b
{N} {went} {a} {unit} [{when}|to {place2}] and [then|] {b} {unit} [{when}|to the {place}]. ? How [far|many {unit}] did
  {he} [go|travel] {total}? = a + b
{N} {went} {a} {unit} {when} and {b} [{unit}|] {when}. | a>b ? How much [farther|further] did {he} go the first time?
  = a - b
It is {a} {unit} from {N}'s [house|home] to {place2} and {b} {unit} from there to the {place}. ? How far is it
  {total}? = a + b
It is {a} {unit} [from home|] to [{place2}|work|school|the {place}]. {N} [goes there and back|walks there and
  back|makes a round trip]. ? How far [does {he} go|is that|is the round trip|does {he} walk] {total}? = a * 2
It is {a} {unit} to [work|school|the {place}]. {N} goes there and back [{k} times|{k} times a week|on {k} days]. ? How
  far does {he} go {total}? = 2 * a * k
{N} [runs|walks|swims|cycles|drives] {b} {unit} [a|per|each|every] day. ? How far does {he} go in {k} days? = b * k ?
  How many {unit} is that in a week? = b * 7
A car [uses|needs|burns] {b} {volume} [of {liquid}|] [for|per] 100 {unit}. ? How much does it need for {k} hundred
  {unit}? = b * k
A car goes {b} {unit} [on|with|per] one [liter|gallon] [of {liquid}|]. ? How far does it go [on|with] {k} {volume}? =
  b * k ? How many {volume} does it need for {a} {unit}? = a / b
A [train|bus|plane|ship|ferry] has {k} [cars|wagons|rows|decks] [with|of] {b} seats [each|]. ? How many seats [does it
  have|are there]? = k * b
A [train|bus|plane|ship|ferry] has {a} seats. {b} [are taken|are occupied|{peoples} are on it|passengers get on]. |
  a>b ? How many seats are [free|empty|still free|left]? = a - b
One lap is {b} {unit} [long|]. {N} [runs|swims|walks|rides] {k} laps. ? How far [is that|does {he} go]? = b * k
# cooking
A recipe [needs|calls for|uses|requires|takes] {b} {measure} of {food} for one {dish1}. ? How [much {food}|many
  {measure}] [is|are] needed for {k} [of them|{dish1}s]? = b * k
[A|One] {dish1} [needs|takes|requires] {b} [eggs|{measure} of {food}]. {N} [makes|bakes|wants to make|cooks] {k} [of
  them|{dish1}s]. ? How many [eggs|{measure}|{measure} of {food}] does {he} need? = b * k
A recipe for {k} people [needs|calls for|uses] {a} [eggs|{things}|{measure} of {food}]. | a/k ? How many
  [eggs|{things}|{measure}] is that per person? = a / k ? How much [is needed|does one need] for one person? = a / k
A recipe [needs|calls for|uses] {b} {measure} of {food}. {N} [makes it {k} times|wants to make {k} batches|makes {k}
  times the recipe]. ? How [many {measure}|much {food}] does {he} need? = b * k
A recipe [needs|calls for|uses] {b} {measure} of {food}. {N} [doubles|wants to double|makes twice|makes double] the
  recipe. ? How [many {measure}|much {food}] does {he} need? = b * 2
A recipe [needs|calls for|uses] {a} {measure} of {food}. {N} [makes|wants to make|cooks] [half of it|half the
  recipe|only half]. ? How [many {measure}|much {food}] does {he} need? = a / 2
A recipe [needs|calls for] {a} {measure} of {food}. {N} has [only|already put in|already added|] {b} [{measure}|]. |
  a>b ? How [many more {measure}|much more] [does {he} need|must {he} add|are missing]? = a - b
{N} [needs|uses|takes] {a} {measure} of {food} and {b} {measure} of {food2} [for a {dish1}|]. ? How many {measure} is
  that {total}? = a + b
{N} [had|has] {a} {measure} of {food}. {He} [uses|used] {b} [{measure}|] for {dish}. | a>b ? How [many {measure}|much
  {food}] [is|are] left? = a - b
{N} [bakes|baked|makes|made] {k} [trays|batches|sheets|pans] of {things}. Each [tray|batch|sheet|pan] has {b}
  [{things}|]. ? How many {things} did {he} [bake|make]? = k * b
{N} [bakes|makes|cooks] {b} {things} per [tray|batch|hour|pan]. ? How many [trays|batches|hours|pans] [are needed|does
  {he} need] for {a} {things}? = a / b
[A|One] [cake|pizza|pie|loaf] is cut into {b} [pieces|slices]. ? How many [pieces|slices] are there in {k}
  [cakes|pizzas|pies|loaves]? = b * k
{N} [bakes|orders|buys] {k} [cakes|pizzas|pies] and cuts each into {b} [pieces|slices]. ? How many [pieces|slices] are
  there? = k * b
{N} cuts a [cake|pizza|pie] into {a} [pieces|slices]. {b} [are eaten|pieces are eaten|people take one each]. | a>b ?
  How many [pieces|slices] are left? = a - b
A [cake|pizza|pie] has {a} [pieces|slices] for {k} {peoples}. ? How many [pieces|slices] does each [get|eat]? = a / k
{dish} must [bake|cook|boil|rest] for {a} minutes. It has been in the [oven|pot] for {b} minutes. | a>b ? How [many
  more minutes|much longer|many minutes more] [must it stay|does it take|is it]? = a - b
It takes {a} minutes to [prepare|cut|mix] and {b} minutes to [bake|cook|boil] {dish}. ? How [long|many minutes] does
  it take {total}? = a + b
{N} makes {a} {volume} of {liquid} and fills it into [bottles|glasses|jars|cups] of {b} {volume}. ? How many
  [bottles|glasses|jars|cups] [does {he} fill|are needed]? = a / b
# ages
{N} is {a} years old. ? How old will {he} be in {b} years? = a + b ? How old was {he} {b} years ago? = a - b
{N} is {a} [years old|]. {M} is {b} years older [than {N}|]. ? How old is {M}? = a + b
{N} is {a} [years old|]. {M} is {b} years younger [than {N}|]. | a>b ? How old is {M}? = a - b
{N} is {a} years old. {His} {kin} is {b} years older. ? How old is {his} {kin}? = a + b ? How old is the {kin}? = a +
  b
{N} is {a} years old. {His} {kin} is {b} years younger. | a>b ? How old is {his} {kin}? = a - b
{N} is {b} years older than {M}. {M} is {a} [years old|]. ? How old is {N}? = a + b
{N} is {b} years younger than {M}. {M} is {a} [years old|]. | a>b ? How old is {N}? = a - b
{N} is {b} years older than {M}. {N} is {a} [years old|]. | a>b ? How old is {M}? = a - b
{N} is {b} years younger than {M}. {N} is {a} [years old|]. ? How old is {M}? = a + b
{N} is {a} years old [and|.] {his} {kin} is {b} [years old|]. | a>b ? How much older is {N} [than {his} {kin}|]? = a -
  b ? What is the difference [between their ages|in age]? = a - b ? How old are they {total}? = a + b
{N} is {a} and {M} is {b} [years old|]. | b>a ? How [much|many years] older is {M} [than {N}|]? = b - a ? How many
  years younger is {N}? = b - a ? What is the sum of their ages? = a + b
{N} is {a} years old. {M} is {k} times as old [as {N}|]. ? How old is {M}? = a * k
{N} is {a} years old. {His} {kin} is [twice|double] as old. ? How old is {his} {kin}? = a * 2
{N} is {a} years old. {M} is half as old [as {N}|]. ? How old is {M}? = a / 2
{N} is {k} times as old as {M}. {N} is {a} [years old|]. ? How old is {M}? = a / k
{N} is twice as old as {M}. {N} is {a} [years old|]. ? How old is {M}? = a / 2
{N} will be {a} years old in {b} years. | a>b ? How old is {N} [now|]? = a - b
In {b} years {N} will be {a} [years old|]. | a>b ? How old is {N} [now|today]? = a - b
{b} years ago {N} was {a} years old. ? How old is {N} [now|]? = a + b
{N} is {a} years old. ? In how many years will {he} be {b}? = b - a
{N} was born in {y}. ? How old was {he} in {z}? = z - y ? How old [is|will] {he} [be|] in {z}? = z - y
The [house|bridge|church|company|school] was built in {y}. ? How old is it in {z}? = z - y ? How old was it in {z}? =
  z - y
# time
A [film|movie|lesson|concert|game|meeting|show] [lasts|takes|is] {a} minutes. {b} minutes [are over|have passed|are
  gone]. | a>b ? How many minutes are left? = a - b ? How [long|much longer] does it still take? = a - b
A [film|movie|lesson|concert|game|meeting|show] [lasts|takes] {k} hours. ? How many minutes is that? = k * 60
[A|The] [film|lesson|task|trip|walk] takes {a} minutes. ? How many hours is that? = a / 60
How many [minutes|seconds] are there in {k} [hours|minutes]? | half ? Answer with a number. = k * 60
[A week has 7 days.|] ? How many days are [there in|in] {k} weeks? = k * 7
{N} [stays|was on vacation|travels|waits|is away] for {k} weeks. ? How many days is that? = k * 7
{N} [waits|was away|has] {a} days. ? How many weeks is that? = a / 7
A [baby|dog|plant] is {k} years old. ? How many months is that? = k * 12
{N} sleeps {b} hours [a|each|every|per] night. ? How many hours does {he} sleep in [a week|7 nights]? = b * 7
{N} [practises|reads|works|trains|sleeps|plays|studies] {b} [hours|minutes] [a|each|every|per] day. ? How many
  [hours|minutes] is that in {k} days? = b * k ? How many [hours|minutes] is that in a week? = b * 7
A [train|bus|film|meeting|class|party] [starts|leaves|begins] at {a} o'clock and [ends|arrives|is over] at {b}
  o'clock. | b>a ? How [many hours|long] does it [take|last]? = b - a
A [train|bus|film|meeting|class|party] [starts|leaves|begins] at {a} o'clock and [lasts|takes] {b} hours. ? When [does
  it end|is it over|does it arrive]? = a + b ? At what time does it end? = a + b
{N} [works|worked|studied|practised|played] {a} [hours|minutes] {when} and {b} [hours|minutes] {when}. ? How
  [long|many hours|many minutes] did {he} [work|study|practise|play] {total}? = a + b
[One|A] {thing} takes {b} minutes [to make|]. ? How [long|many minutes] do {k} {things} take? = b * k
{N} needs {b} minutes [to {do_it}|for] [one|each|a] {thing}. ? How [long|many minutes] does {he} need for {k}
  {things}? = b * k
{N} {does_it} {k} {things} in {a} minutes. ? How [long|many minutes] does [one|each] {thing} take? = a / k
# large
{city} [has|had] {a} [inhabitants|people|members|books|visitors]. {b} [of them|] [moved away|left|were lost|are
  children]. | L a>b ? How many [are left|remain|are there now|are there without them]? = a - b
{city} [has|had] {a} [inhabitants|people|members|books|students]. [Last year|This year|Then|Later] {b} [more|new ones]
  [came|joined|were added|arrived|moved in]. | L ? How many are there [now|in total]? = a + b
A [stadium|theater|hall|arena|cinema] has {a} seats. {b} [seats are taken|tickets were sold|people came|are occupied].
  | L a>b ? How many seats [are empty|are free|were not sold|remain]? = a - b
A [factory|farm|company|bakery|printer|mine] [makes|produced|made|sold|harvested] {a} {things} in {month} and {b} in
  {month2}. | L ? How many {things} is that {total}? = a + b ? How many [more|fewer] in one month than in the other? =
  max(a,b) - min(a,b)
A [factory|farm|company|bakery|printer] [makes|produces|sells|prints] {b} {things} [a|per|each] [day|week|month|hour].
  | L ? How many [{things}|] [is that|does it make] in {k} [days|weeks|months|hours]? = b * k
A [factory|farm|company|bakery|printer] [packs|ships|makes] {a} {things} in {boxes} of {b}. | L ? How many {boxes}
  [are needed|does it fill|is that]? = a / b
A [museum|zoo|park|website|library] had {a} visitors in {month} and {b} in {month2}. | L a>b ? How many more
  [visitors|] [came|did it have] in {month}? = a - b ? How many visitors were there in both months [together|]? = a +
  b
A [mountain|plane|balloon|hill] is {a} {length} [high|up]. A climber is at {b} {length}. | L a>b ? How many {length}
  are left to the top? = a - b
{N} [walked|took|made] {a} steps {when} and {b} steps {when}. | L ? How many steps [did {he} take|is that] {total}? =
  a + b
{N}'s goal is {a} steps [a day|]. {He} has [made|taken|walked] {b}. | L a>b ? How many steps [are left|more does {he}
  need]? = a - b
A [house|car|boat|farm|machine] costs {p$}. {N} has [saved|paid] {q$}. | L p>q ? How much [is missing|must {he} still
  pay|more does {he} need| is left to pay]? = p - q
A [car|boat|machine|piano] costs {p$}. {N} pays in {k} equal [parts|instalments|payments]. | L ? How much is each
  [part|payment|one]? = p / k
A [school|company|library] [buys|bought|orders] {k} [computers|desks|books|chairs|{things}] for {p$} {each}. | L ? How
  much does it pay {total}? = k * p
A [farm|company|city|school|state] has {a} [acres|{things}|dollars] [to share|] for {k}
  [families|departments|schools|workers]. | L ? How [many|much] does each get? = a / k
[A river|A road|A border|A railway|A wall|A pipe] is {a} {unit} long. {b} {unit} [are finished|have been repaired|are
  in this country]. | L a>b ? How many {unit} are [left|missing|not]? = a - b
[The first|One|A big] [book|file|library|town] has {a} [words|pages|people|rooms] and [the second|another one] has
  {b}. | L ? How many do they have {total}? = a + b ? What is the difference? = max(a,b) - min(a,b)
A [population|herd|school|company|forest] of {a} [grew|rose|increased] by {b}. | L ? How large is it now? = a + b
A [population|herd|school|company|forest] of {a} [fell|shrank|decreased|dropped] by {b}. | L a>b ? How large is it
  now? = a - b
"""
