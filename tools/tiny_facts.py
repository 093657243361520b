"""Small tables of plain facts that the question-and-answer examples are made from."""

from __future__ import annotations


def _words(text: str) -> list[str]:
    return text.split()


def _pairs(text: str) -> list[tuple[str, str]]:
    return [tuple(part.split(":")) for part in " ".join(text.split()).split("; ")]  # type: ignore[misc]


CAPITALS = _pairs("""
France:Paris; Germany:Berlin; Italy:Rome; Spain:Madrid; Portugal:Lisbon; England:London;
Scotland:Edinburgh; Ireland:Dublin; Wales:Cardiff; Greece:Athens; Austria:Vienna; Poland:Warsaw;
Hungary:Budapest; Sweden:Stockholm; Norway:Oslo; Denmark:Copenhagen; Finland:Helsinki;
Russia:Moscow; Ukraine:Kyiv; Turkey:Ankara; Egypt:Cairo; Kenya:Nairobi; Nigeria:Abuja;
Ghana:Accra; Morocco:Rabat; Ethiopia:Addis Ababa; India:New Delhi; China:Beijing; Japan:Tokyo;
Thailand:Bangkok; Vietnam:Hanoi; Nepal:Kathmandu; Iran:Tehran; Iraq:Baghdad; Jordan:Amman;
Australia:Canberra; New Zealand:Wellington; Canada:Ottawa; Mexico:Mexico City; Cuba:Havana;
Brazil:Brasilia; Argentina:Buenos Aires; Chile:Santiago; Peru:Lima; Colombia:Bogota;
Belgium:Brussels; Switzerland:Bern; the Netherlands:Amsterdam; the United States:Washington;
Iceland:Reykjavik; Romania:Bucharest; Bulgaria:Sofia; Serbia:Belgrade; Croatia:Zagreb
""")

OPPOSITES = _pairs("""
hot:cold; big:small; tall:short; long:short; fast:slow; old:young; new:old; good:bad; happy:sad;
light:dark; up:down; left:right; in:out; open:closed; full:empty; hard:soft; wet:dry; rich:poor;
strong:weak; high:low; early:late; day:night; black:white; clean:dirty; loud:quiet; heavy:light;
thick:thin; wide:narrow; deep:shallow; near:far; first:last; true:false; right:wrong; love:hate;
war:peace; life:death; begin:end; start:stop; buy:sell; give:take; come:go; push:pull; win:lose;
laugh:cry; remember:forget; always:never; all:none; top:bottom; front:back; inside:outside;
above:below; before:after; friend:enemy; summer:winter; north:south; east:west; brave:afraid;
kind:cruel; wise:foolish; sweet:bitter; smooth:rough; sharp:dull; easy:difficult;
safe:dangerous; yes:no; asleep:awake; alive:dead; find:lose; rise:fall
""")

COLOURS = _pairs("""
the sky:blue; grass:green; snow:white; coal:black; blood:red; a lemon:yellow; an orange:orange;
milk:white; a leaf:green; the sea:blue; gold:yellow; a strawberry:red; a banana:yellow;
chocolate:brown; the night:black; a ripe tomato:red; a carrot:orange; the sun:yellow; a
cloud:white; a plum:purple; wood:brown; a frog:green; a swan:white; a crow:black; an
elephant:grey; a pig:pink; a flamingo:pink; fire:red; ice:white; an emerald:green
""")

SOUNDS = _pairs("""
dog:barks; cat:meows; cow:moos; sheep:bleats; horse:neighs; lion:roars; duck:quacks; pig:grunts;
wolf:howls; bee:buzzes; snake:hisses; owl:hoots; mouse:squeaks; frog:croaks; bird:sings;
donkey:brays; hen:clucks
""")

YOUNG = _pairs("""
dog:puppy; cat:kitten; cow:calf; sheep:lamb; horse:foal; lion:cub; duck:duckling; pig:piglet;
goat:kid; hen:chick; bear:cub; deer:fawn; swan:cygnet; goose:gosling; frog:tadpole
""")

PLURALS = _pairs("""
man:men; woman:women; child:children; foot:feet; tooth:teeth; mouse:mice; goose:geese; ox:oxen;
sheep:sheep; fish:fish; knife:knives; wolf:wolves; leaf:leaves; life:lives; city:cities;
baby:babies; box:boxes; church:churches; dog:dogs; ship:ships; tree:trees; house:houses;
king:kings; story:stories; day:days; boy:boys; glass:glasses; hero:heroes; lady:ladies;
half:halves
""")

PASTS = _pairs("""
go:went; come:came; see:saw; take:took; give:gave; make:made; say:said; run:ran; eat:ate;
drink:drank; write:wrote; speak:spoke; sing:sang; sit:sat; stand:stood; fall:fell; find:found;
think:thought; bring:brought; buy:bought; catch:caught; teach:taught; know:knew; grow:grew;
throw:threw; keep:kept; sleep:slept; leave:left; lose:lost; win:won; begin:began; swim:swam;
walk:walked; look:looked; love:loved; play:played; cry:cried; ride:rode; break:broke; tell:told
""")

MEANINGS = _pairs("""
dog:an animal that people keep as a friend and that barks; cat:a small furry animal that catches
mice; water:the clear liquid that we drink; sun:the star that gives the earth light and heat;
moon:the round body that shines in the sky at night; tree:a tall plant with a trunk, branches
and leaves; sea:a great body of salt water; river:water that flows through the land to the sea;
mountain:a very high hill; teacher:a person who helps others to learn; doctor:a person who heals
the sick; king:a man who rules a country; queen:a woman who rules a country, or the wife of a
king; bread:food that is baked from flour; apple:a round fruit that grows on a tree; horse:a
large animal that people ride; whale:a very large animal that lives in the sea; ship:a large
boat that sails on the sea; clock:a thing that shows the time; winter:the coldest season of the
year; summer:the warmest season of the year; friend:a person whom you like and trust; mother:a
woman who has a child; father:a man who has a child; school:a place where children learn; book:a
number of pages with words to read; door:the part of a house by which you go in and out;
rain:water that falls from the clouds; snow:soft white frozen water that falls from the clouds;
bird:an animal with wings and feathers; fish:an animal that lives in water and swims; garden:a
place where flowers and plants grow; city:a very large town; farmer:a person who grows food and
keeps animals; sailor:a person who works on a ship; fire:the heat and light of something that
burns; stone:a hard piece of rock; star:a small bright light in the night sky; bee:an insect
that makes honey; cow:an animal that gives us milk; egg:what a hen lays; hand:the part of the
body at the end of the arm; heart:the part of the body that moves the blood; map:a drawing that
shows where places are
""")

WHO = _pairs("""
Who wrote Emma?:Jane Austen wrote Emma.; Who wrote Moby Dick?:Herman Melville wrote Moby Dick.;
Who wrote Pride and Prejudice?:Jane Austen wrote Pride and Prejudice.; Who wrote Tom
Sawyer?:Mark Twain wrote The Adventures of Tom Sawyer.; Who wrote Alice in Wonderland?:Lewis
Carroll wrote Alice in Wonderland.; Who wrote The Happy Prince?:Oscar Wilde wrote The Happy
Prince.; Who built the ark?:Noah built the ark.; Who hunted the white whale?:Captain Ahab hunted
the white whale.; Who was the first president of the United States?:George Washington was the
first president of the United States.; Who are you?:I am a very small language model. I learned
to read from old books.; What are you?:I am a very small language model that learned from old
books.; What is your name?:I have no name. I am a very small language model.; Can you help
me?:Yes. Ask me something simple.; What can you do?:I can tell little stories, add small
numbers, spell words and answer simple questions.; How are you?:I am well, thank you.;
Hello!:Hello! What can I do for you?; Hi:Hello! What can I do for you?; Good morning.:Good
morning! How can I help you?; Thank you.:You are welcome.; Thanks!:You are welcome.; Good
night.:Good night. Sleep well.; Goodbye.:Goodbye!; How many days are in a week?:There are seven
days in a week.; How many months are in a year?:There are twelve months in a year.; How many
legs has a spider?:A spider has eight legs.; How many legs has a dog?:A dog has four legs.; How
many legs has a bird?:A bird has two legs.; How many hours are in a day?:There are twenty-four
hours in a day.; How many minutes are in an hour?:There are sixty minutes in an hour.; What do
bees make?:Bees make honey.; What do cows give us?:Cows give us milk.; Where do fish live?:Fish
live in water.; Where does the sun rise?:The sun rises in the east.; Where does the sun set?:The
sun sets in the west.; Is fire hot?:Yes, fire is hot.; Is ice hot?:No, ice is cold.; Can birds
fly?:Yes, most birds can fly.; Can a fish walk?:No, a fish swims.; Is the sea salt?:Yes, the sea
is salt.; Is the sun a star?:Yes, the sun is a star.
""")

DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = _words("""
January February March April May June July August September October November December
""")
THEMES = _words("""
sea ship whale captain king queen wife sister brother mother father child children house garden
river mountain war peace bread fish horse tree night morning dinner letter ball marriage money
friend enemy dog cat bird giant prince princess church school teacher boy girl island storm city
land law congress people soldiers nation farm rain snow fire gold temple prophet shepherd sheep
lion road journey dance music book winter summer spring village doctor sailor
""")
# Where passages that answer "tell me a story" are taken from.
STORY_SOURCES = _words("austen moby-dick tom-sawyer alice wilde-hardy-poe grahame-dickens")
